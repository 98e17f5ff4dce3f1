from __future__ import annotations

from collections.abc import Callable

import pytest

from committerd.errors import CommitterError, CorruptTable, UnsupportedTable
from committerd.lance.format.feature_flags import FeatureFlag
from committerd.lance.format.fragment_list import pack
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.support import has_stable_row_ids, require_supported
from committerd_common.index_details import FRAGMENT_REUSE_INDEX
from committerd_common.messages import (
    UUID,
    DataFragment,
    DeletionFile,
    ExternalFile,
    Field,
    IndexMetadata,
    IndexSection,
    Manifest,
)
from tests.lance.format.golden_tables import every_version, manifest_file

INLINE = b"\x0a\x04\x0a\x02\x10\x0a"


def table(**changes: object) -> Manifest:
    """A manifest that we support, two fragments, with these changes."""
    manifest = Manifest(
        version=7,
        fields=[Field(name="id", id=0, parent_id=-1)],
        fragments=[
            DataFragment(id=0, physical_rows=10),
            DataFragment(
                id=2,
                physical_rows=10,
                deletion_file=DeletionFile(read_version=3, num_deleted_rows=1),
            ),
        ],
        reader_feature_flags=1,
        writer_feature_flags=1,
        data_format=Manifest.DataStorageFormat(file_format="lance", version="2.0"),
        writer_version=Manifest.WriterVersion(library="lance", version="4.0.0"),
    )
    manifest.MergeFrom(Manifest(**changes))  # type: ignore[arg-type]  # keywords of a message
    return manifest


def refusal(manifest: Manifest, *indices: IndexMetadata) -> CommitterError:
    with pytest.raises((UnsupportedTable, CorruptTable)) as caught:
        check(manifest, *indices)
    assert str(caught.value).startswith("version 7 can't be built upon: ")
    return caught.value


def check(manifest: Manifest, *indices: IndexMetadata) -> None:
    outline, fragments = pack(manifest)
    require_supported(
        ManifestFile(
            outline=outline,
            fragments=fragments,
            index_section=IndexSection(indices=indices),
            transaction=None,
            transaction_bytes=None,
        )
    )


def index(name: str = "i", version: int = 0) -> IndexMetadata:
    return IndexMetadata(uuid=UUID(uuid=bytes(16)), name=name, index_version=version)


@pytest.mark.parametrize("version", every_version())
def test_every_table_that_pylance_wrote_is_supported(version: tuple[str, str, int]) -> None:
    require_supported(manifest_file(*version))


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2", "2.3"])
def test_tables_of_format_2_are_supported(version: str) -> None:
    manifest = table()
    manifest.data_format.version = version
    check(manifest, index(), index(FRAGMENT_REUSE_INDEX), index("x", version=3))


def test_files_of_several_versions_are_supported() -> None:
    check(table(reader_feature_flags=1 | 256, writer_feature_flags=1 | 8 | 256))


@pytest.mark.parametrize("words", [(256, 0), (0, 256)])
def test_a_paired_flag_in_one_word_is_corrupt(words: tuple[int, int]) -> None:
    error = refusal(table(reader_feature_flags=words[0], writer_feature_flags=words[1]))
    assert isinstance(error, CorruptTable)
    assert error.code == "feature_flags_unpaired"
    assert "256" in str(error)


@pytest.mark.parametrize("bit", [1 << place for place in range(6, 64) if place not in (7, 8)])
def test_any_other_flag_is_refused_in_either_word(bit: int) -> None:
    for words in ((bit, bit), (bit, 0), (0, bit)):
        error = refusal(table(reader_feature_flags=words[0], writer_feature_flags=words[1]))
        assert isinstance(error, UnsupportedTable)
        assert error.code == "feature_flags"
        assert f"feature flag {bit}" in str(error)


def test_all_unknown_flags_are_told_at_once_with_their_names() -> None:
    flags = FeatureFlag.DATA_OVERLAYS | FeatureFlag.MANAGED_BLOBS
    error = refusal(table(reader_feature_flags=flags, writer_feature_flags=flags | 2048))
    assert "feature flag 64 (data_overlays): some values lie in overlay files" in str(error)
    assert "; it needs feature flag 2048 (spilled_row_lineage): only columns of data files say which ids" in str(error)
    assert "; it needs feature flag 16384 (managed_blobs): only columns of data files say which blobs" in str(error)
    error = refusal(table(reader_feature_flags=1024))
    assert str(error).endswith("feature flag 1024 (tagged_fragment_reuse)")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"fragment_tree": b""}, "Manifest.fragment_tree (field 22) is set"),
        ({"max_allocated_field_id": 0}, "Manifest.max_allocated_field_id (field 24) is set"),
        ({"clustering": b"x"}, "Manifest.clustering (field 25) is set"),
        ({"max_clustering_id": 0}, "Manifest.max_clustering_id (field 26) is set"),
    ],
)
def test_fields_of_newer_manifests_are_refused(changes: dict[str, object], text: str) -> None:
    error = refusal(table(**changes))
    assert isinstance(error, UnsupportedTable)
    assert error.code == "newer_manifest"
    assert str(error).endswith(text)


def unknown_in_manifest(manifest: Manifest) -> None:
    manifest.MergeFromString(b"\xc2\x0c\x00")


def unknown_in_fragment(manifest: Manifest) -> None:
    manifest.fragments[1].MergeFromString(b"\x5a\x00")


def unknown_in_field(manifest: Manifest) -> None:
    manifest.fields[0].MergeFromString(b"\xc2\x0c\x00")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (unknown_in_manifest, "Manifest#200"),
        (unknown_in_fragment, "Manifest.fragments[1]#11"),
        (unknown_in_field, "Manifest.fields[0]#200"),
    ],
)
def test_unknown_fields_are_refused(change: Callable[[Manifest], None], path: str) -> None:
    manifest = table()
    change(manifest)
    error = refusal(manifest)
    assert isinstance(error, UnsupportedTable)
    assert error.code == "unknown_fields"
    assert f"committerd does not know {path}" in str(error)


def test_an_unknown_field_of_an_index_is_refused() -> None:
    newer = IndexMetadata.FromString(index().SerializeToString() + b"\x62\x01\x02")
    error = refusal(table(), index(), newer)
    assert error.code == "unknown_fields"
    assert "IndexSection.indices[1]#12" in str(error)


@pytest.mark.parametrize("version", ["", "0.1", "2.4", "3.0"])
def test_other_data_formats_are_refused(version: str) -> None:
    manifest = table()
    manifest.data_format.version = version
    error = refusal(manifest)
    assert isinstance(error, UnsupportedTable)
    assert error.code == "data_format"
    assert f"format {version!r}; committerd writes on 2.0, 2.1, 2.2, 2.3" in str(error)


def test_a_table_that_does_not_say_what_wrote_it_is_refused() -> None:
    manifest = table()
    manifest.ClearField("writer_version")
    assert refusal(manifest).code == "writer_version_missing"


def test_unknown_row_counts_are_refused() -> None:
    error = refusal(table(fragments=[DataFragment(id=3)]))
    assert isinstance(error, UnsupportedTable)
    assert error.code == "physical_rows_unknown"
    assert "fragment 3" in str(error)
    unknown = DataFragment(id=4, physical_rows=5, deletion_file=DeletionFile(id=1))
    error = refusal(table(fragments=[unknown]))
    assert isinstance(error, UnsupportedTable)
    assert error.code == "deleted_rows_unknown"
    assert "fragment 4" in str(error)


def test_a_deletion_file_of_unknown_type_is_refused() -> None:
    manifest = table()
    manifest.fragments[1].deletion_file.MergeFromString(b"\x08\x05")
    error = refusal(manifest)
    assert error.code == "deletion_file_type"
    assert "fragment 2 has type 5" in str(error)


def stable(*fragments: DataFragment) -> Manifest:
    manifest = table(reader_feature_flags=2, writer_feature_flags=2)
    del manifest.fragments[:]
    manifest.fragments.extend(fragments)
    return manifest


def test_stable_row_ids_are_supported_with_and_without_fragments() -> None:
    check(stable())
    check(stable(DataFragment(physical_rows=10, inline_row_ids=INLINE)))
    assert has_stable_row_ids(stable())
    assert not has_stable_row_ids(table())


@pytest.mark.parametrize(
    "external",
    [
        DataFragment(external_row_ids=ExternalFile(path="r")),
        DataFragment(inline_row_ids=INLINE, external_last_updated_at_versions=ExternalFile(path="u")),
        DataFragment(inline_row_ids=INLINE, external_created_at_versions=ExternalFile(path="c")),
    ],
)
def test_sequences_in_other_files_are_refused(external: DataFragment) -> None:
    external.id, external.physical_rows = 8, 10
    error = refusal(stable(external))
    assert isinstance(error, UnsupportedTable)
    assert error.code == "external_sequences"
    assert "fragment 8 has its external_" in str(error)


def test_row_ids_are_in_all_fragments_or_in_none() -> None:
    error = refusal(stable(DataFragment(id=5, physical_rows=10)))
    assert isinstance(error, CorruptTable)
    assert error.code == "row_ids_missing"
    assert "fragment 5 has no row ids" in str(error)
    with_ids = DataFragment(id=6, physical_rows=10, inline_row_ids=INLINE)
    error = refusal(table(fragments=[with_ids]))
    assert isinstance(error, CorruptTable)
    assert error.code == "row_ids_without_flag"
    assert "fragment 6 has row ids" in str(error)


def test_a_fragment_id_twice_is_corrupt_even_where_more_is_unsupported() -> None:
    manifest = table(fragments=[DataFragment(id=2)])
    manifest.data_format.version = "9.9"
    error = refusal(manifest)
    assert isinstance(error, CorruptTable)
    assert error.code == "fragment_id_twice"
    assert "two fragments have id 2" in str(error)


@pytest.mark.parametrize("flag", [FeatureFlag.SPILLED_ROW_LINEAGE, FeatureFlag.FRAGMENT_TREE])
def test_what_a_feature_that_we_do_not_know_allows_is_not_corrupt(flag: FeatureFlag) -> None:
    """Then row ids may be in data files, or fragments in files of their own."""
    error = refusal(table(reader_feature_flags=2 | flag, writer_feature_flags=2 | flag))
    assert isinstance(error, UnsupportedTable)
    assert error.code == "feature_flags"
    assert "row ids" not in str(error)


def test_a_fragment_id_fits_a_row_address() -> None:
    check(table(fragments=[DataFragment(id=2**32 - 2, physical_rows=1)]))
    error = refusal(table(fragments=[DataFragment(id=2**32 - 1, physical_rows=1)]))
    assert isinstance(error, CorruptTable)
    assert error.code == "fragment_id_too_large"


@pytest.mark.parametrize("uuid", [None, b"", b"too short"])
def test_an_index_without_a_uuid_is_corrupt(uuid: bytes | None) -> None:
    nameless = index()
    nameless.ClearField("uuid")
    if uuid is not None:
        nameless.uuid.uuid = uuid
    error = refusal(table(), nameless)
    assert isinstance(error, CorruptTable)
    assert error.code == "index_uuid"


def test_a_newer_fragment_reuse_index_is_refused() -> None:
    error = refusal(table(), index(FRAGMENT_REUSE_INDEX, version=1))
    assert isinstance(error, UnsupportedTable)
    assert error.code == "fragment_reuse_version"


def test_a_table_with_many_faults_tells_ten_and_how_many_more() -> None:
    faulty = [DataFragment(id=number) for number in range(10, 35)]
    message = str(refusal(table(fragments=faulty)))
    assert message.count("does not say how many rows") == 10
    assert message.endswith("; and 15 more")
    exactly = str(refusal(table(fragments=faulty[:10])))
    assert exactly.count("does not say how many rows") == 10
    assert "more" not in exactly
