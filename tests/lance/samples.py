"""Small tables and transactions, with only the parts that a rule reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pyroaring import BitMap, BitMap64

from committerd.lance.format.fragment_list import NO_FRAGMENTS, Chunk, FragmentList, pack
from committerd.lance.format.fragment_reuse import Content
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.transactions.build import build
from committerd.lance.versions import draft
from committerd.lance.versions.draft import BuildInput
from committerd.lance.versions.next_version import NextVersion
from committerd_common.index_details import pack_details
from committerd_common.messages import (
    UUID,
    BTreeIndexDetails,
    DataFile,
    DataFragment,
    DeletionFile,
    Field,
    FragmentReuseIndexDetails,
    IndexMetadata,
    IndexSection,
    Manifest,
    MemWalIndexDetails,
    MergedGeneration,
    Transaction,
    VectorIndexDetails,
)
from committerd_common.messages import (
    Any as AnyMessage,
)
from committerd_common.row_ids import RowIds, encode_row_ids

TRANSACTION_UUID = "0b1c2d3e-4f50-4617-8283-94a5b6c7d8e9"
NOW = datetime(2030, 1, 2, tzinfo=UTC)
GIVEN = BuildInput(now=NOW, transaction_file="1-x.txn", index_uuid=b"i" * 16)


def uuid_of(number: int) -> UUID:
    return UUID(uuid=number.to_bytes(16, "big"))


def column(number: int, *, nullable: bool = True, parent: int = -1) -> Field:
    return Field(id=number, name=f"c{number}", parent_id=parent, logical_type="int64", nullable=nullable)


def data_file(name: str, fields: Sequence[int] = (0, 1, 2), minor: int = 0) -> DataFile:
    return DataFile(
        path=f"{name}.lance",
        fields=fields,
        column_indices=range(len(fields)),
        file_major_version=2,
        file_minor_version=minor,
        file_size_bytes=100,
    )


def fragment(number: int, *, rows: int = 10, name: str | None = None, deleted: int = 0) -> DataFragment:
    """One data file with all columns. `deleted`: a deletion file with this many rows, and with this id."""
    made = DataFragment(id=number, physical_rows=rows, files=[data_file(name or f"f{number}")])
    if deleted:
        made.deletion_file.CopyFrom(deletion_file(deleted))
    return made


def deletion_file(rows: int, *, number: int | None = None) -> DeletionFile:
    return DeletionFile(file_type=DeletionFile.BITMAP, read_version=1, id=number or rows, num_deleted_rows=rows)


def with_row_ids(made: DataFragment, ids: Iterable[range]) -> DataFragment:
    made.inline_row_ids = encode_row_ids(RowIds(tuple(ids)))
    return made


def bitmap(fragments: Iterable[int]) -> bytes:
    return bytes(BitMap(fragments).serialize())


def index(
    number: int,
    *,
    name: str | None = None,
    fields: Sequence[int] = (0,),
    fragments: Iterable[int] | None = (0,),
    version: int = 1,
    details: AnyMessage | None = None,
) -> IndexMetadata:
    return IndexMetadata(
        uuid=uuid_of(number),
        name=name or f"i{number}",
        fields=fields,
        dataset_version=version,
        fragment_bitmap=b"" if fragments is None else bitmap(fragments),
        index_details=details or pack_details(BTreeIndexDetails()),
        index_version=0,
    )


def vector_index(number: int, **other: Any) -> IndexMetadata:
    return index(number, details=pack_details(VectorIndexDetails()), **other)


def reuse_index(number: int, *groups: tuple[Sequence[int], Sequence[int]], version: int = 2) -> IndexMetadata:
    """`__lance_frag_reuse` with one entry for each pair of old and new fragment ids."""
    details = FragmentReuseIndexDetails()
    details.inline.SetInParent()
    for old, new in groups:
        entry = details.inline.versions.add(dataset_version=version)
        group = entry.groups.add(changed_row_addrs=BitMap64().serialize())
        for one in old:
            group.old_fragments.add(id=one, physical_rows=10)
        for one in new:
            group.new_fragments.add(id=one, physical_rows=10)
    return index(
        number,
        name="__lance_frag_reuse",
        fields=(),
        fragments=[one for _, new in groups for one in new],
        version=version,
        details=pack_details(details),
    )


def reuse_content(details: bytes) -> Content:
    """The content of an index made by `reuse_index`."""
    return FragmentReuseIndexDetails.FromString(details).inline


def external_details(path: str, size: int) -> AnyMessage:
    """Details of a reuse index whose content is in a file."""
    details = FragmentReuseIndexDetails()
    details.external.path, details.external.size = path, size
    return pack_details(details)


def generation(region: int, number: int) -> MergedGeneration:
    return MergedGeneration(region_id=uuid_of(region), generation=number)


def mem_wal_index(number: int, *merged: MergedGeneration) -> IndexMetadata:
    details = pack_details(MemWalIndexDetails(merged_generations=merged))
    return index(number, name="__lance_mem_wal", fields=(), fragments=None, details=details)


def manifest(
    *fragments: DataFragment,
    version: int = 5,
    columns: Sequence[Field] | None = None,
    stable: bool = False,
    writer: tuple[str, str] = ("lance", "14.0.2"),
    **other: Any,
) -> Manifest:
    """A sound version. `stable`: its rows have ids; fragments without ids get some."""
    made = Manifest(
        version=version,
        fields=[column(0), column(1), column(2)] if columns is None else columns,
        fragments=fragments,
        writer_version=Manifest.WriterVersion(library=writer[0], version=writer[1]),
        data_format=Manifest.DataStorageFormat(file_format="lance", version="2.0"),
    )
    if fragments:
        made.max_fragment_id = max(one.id for one in fragments)
    if stable:
        for one in made.fragments:
            if not one.inline_row_ids:
                with_row_ids(one, [range(made.next_row_id, made.next_row_id + one.physical_rows)])
                made.next_row_id += one.physical_rows
    flags = 1 if any(one.HasField("deletion_file") for one in fragments) else 0
    flags |= 2 if stable else 0
    made.reader_feature_flags = made.writer_feature_flags = flags
    made.MergeFrom(Manifest(**other))
    made.reader_feature_flags |= 16 if made.base_paths else 0
    made.writer_feature_flags |= (16 if made.base_paths else 0) | (8 if made.config else 0)
    return made


def table(made: Manifest, *indices: IndexMetadata) -> ManifestFile:
    outline, fragments = pack(made)
    return ManifestFile(
        outline=outline,
        fragments=fragments,
        index_section=IndexSection(indices=indices),
        transaction=None,
        transaction_bytes=None,
    )


def transaction(read_version: int = 5, uuid: str = TRANSACTION_UUID, **operation: Any) -> Transaction:
    return Transaction(read_version=read_version, uuid=uuid, **operation)


def updates(entries: Mapping[str, str | None], *, replace: bool = False) -> Transaction.UpdateMap:
    return Transaction.UpdateMap(
        replace=replace,
        update_entries=[Transaction.UpdateMapEntry(key=key, value=value) for key, value in entries.items()],
    )


def after(current: ManifestFile | None, staged: Transaction, given: BuildInput = GIVEN) -> NextVersion:
    """The next version, with all its fragments decoded. The version that it was built from is not changed.

    It is the same whether the current version has its fragments in chunks of many or of one, and whether they were
    decoded or kept.
    """
    before = (current.manifest.SerializeToString(), list(current.indices)) if current else None
    said = staged.SerializeToString()
    built = whole(build(current, staged, given))
    if current is not None:
        singly = FragmentList(Chunk(one.SerializeToString(), 1) for one in map(_alone, current.fragments))
        assert whole(build(replace(current, fragments=singly), staged, given)) == built
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(draft, "_has_ascending_ids", lambda current: False)
            assert whole(build(current, staged, given)) == built
    assert staged.SerializeToString() == said
    assert before == ((current.manifest.SerializeToString(), list(current.indices)) if current else None)
    return built


def whole(built: NextVersion) -> NextVersion:
    """The version with all fragments decoded, as it will be read."""
    outline, own = built.packed
    fragments = built.kept.with_added(own)
    made = Manifest()
    made.CopyFrom(outline)
    made.fragments.extend(fragments)
    return replace(built, manifest=made, kept=NO_FRAGMENTS)


def _alone(one: DataFragment) -> Manifest:
    return Manifest(fragments=[one])


def ids(built: NextVersion) -> list[int]:
    return [one.id for one in built.manifest.fragments]


def covered(built: NextVersion) -> dict[str, list[int]]:
    """Fragments that each index covers, by name."""
    return {one.name: list(BitMap.deserialize(one.fragment_bitmap)) for one in built.indices}
