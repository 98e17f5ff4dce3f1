"""A version that another library has built becomes ours, with all that we don't know of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from committerd.errors import UnsupportedRequest
from committerd.lance.format.feature_flags import FeatureFlag
from committerd.lance.format.manifest_file import ManifestFile, decode, encode
from committerd.lance.versions.adopted import adopted, require_kept
from committerd_common.messages import IndexMetadata, Manifest, Transaction
from committerd_common.unknown_fields import unknown_fields
from tests.lance.samples import GIVEN, fragment, index, manifest, transaction

DETACHED = 1 << 63 | 0x1234_5678_9ABC_DEF0
UNKNOWN = b"\xca\x05\x03abc"
"""Field 89, which nobody knows."""
ASKED = transaction(1, "5d1c2d3e-4f50-4617-8283-94a5b6c7d8e9", append=Transaction.Append(fragments=[fragment(1)]))
STORED = transaction(1, append=Transaction.Append(fragments=[fragment(1)]))
POSITION = "committerd.position"


def built(version: int = DETACHED, *, asked: Transaction = ASKED, **other: object) -> Manifest:
    one = manifest(fragment(0), fragment(1), version=version, **other)  # type: ignore[arg-type]
    for message in (one, one.fragments[1], one.writer_version):
        message.MergeFromString(UNKNOWN)
    one.reader_feature_flags = one.writer_feature_flags = FeatureFlag.MANAGED_BLOBS
    one.writer_version.library, one.writer_version.version = "lance", "15.0.0"
    one.table_metadata["committerd.app.x"] = "made up"
    one.tag = ""
    return one


def indices() -> list[IndexMetadata]:
    one = index(0)
    one.MergeFromString(UNKNOWN)
    return [one]


LATEST = decode(encode(manifest(fragment(0), version=1), (), transaction()))


def adopt(body: bytes, stored: Transaction = STORED) -> ManifestFile:
    given = replace(GIVEN, table_metadata={POSITION: "p"})
    file, whole = adopted(body, LATEST, stored, asked=ASKED, given=given)
    again = decode(bytes(whole))
    assert again.outline.transaction_section > 0
    assert again.manifest.fragments == file.manifest.fragments
    assert again.index_section == file.index_section
    assert again.transaction == file.transaction == stored
    assert again.transaction_bytes == file.transaction_bytes
    return again


def test_all_that_is_unknown_stays_and_what_is_ours_is_set() -> None:
    stored = Transaction(tag="t")
    stored.MergeFrom(STORED)
    file = adopt(encode(built(), indices(), ASKED), stored)
    outline = file.outline
    assert unknown_fields(file.manifest) == [
        "Manifest#89",
        "Manifest.fragments[1]#89",
        "Manifest.writer_version#89",
    ]
    assert unknown_fields(file.index_section) == ["IndexSection.indices[0]#89"]
    assert (outline.version, outline.tag, outline.transaction_file) == (2, "t", GIVEN.transaction_file)
    assert outline.table_metadata == {POSITION: "p"}
    assert outline.reader_feature_flags == outline.writer_feature_flags == FeatureFlag.MANAGED_BLOBS
    assert outline.writer_version.version == "15.0.0"
    assert outline.timestamp.ToDatetime(GIVEN.now.tzinfo) >= GIVEN.now


def test_a_version_without_indices() -> None:
    assert not adopt(encode(built(), (), ASKED)).indices


def refusal(body: bytes) -> str:
    with pytest.raises(UnsupportedRequest) as error:
        adopt(body)
    assert error.value.code == "pylance_refused"
    return str(error.value)


def test_what_is_not_what_was_asked_for_is_refused() -> None:
    assert "does not understand" in refusal(encode(built(), (), STORED))
    assert "can't be read" in refusal(b"LANC")


def test_an_object_without_a_transaction_is_refused() -> None:
    assert "does not understand" in refusal(encode(built(), (), Transaction()))


@pytest.mark.parametrize("version", [2, DETACHED])
def test_a_number_that_is_of_the_history_or_a_part_of_the_content_is_refused(version: int) -> None:
    one = built(version)
    if version == DETACHED:
        one.next_row_id = DETACHED
    assert "number" in refusal(encode(one, (), ASKED))


class TestWhatACommitThatChangesNothingKeeps:
    @staticmethod
    def files(after: Manifest, after_indices: list[IndexMetadata]) -> tuple[ManifestFile, ManifestFile]:
        return decode(encode(built(7), indices(), STORED)), decode(encode(after, after_indices, ASKED))

    def test_all(self) -> None:
        after = built(8)
        after.tag, after.transaction_file = "t", "x"
        require_kept(*self.files(after, indices()))

    @pytest.mark.parametrize("lost", ["fragments", "indices", "manifest", "writer"])
    def test_not_all(self, lost: str) -> None:
        after, section = built(8), indices()
        parts = {"fragments": after.fragments[1], "writer": after.writer_version, "manifest": after}
        parts.get(lost, section[0]).DiscardUnknownFields()
        if lost == "manifest":
            after.fragments[1].MergeFromString(UNKNOWN)
            after.writer_version.MergeFromString(UNKNOWN)
        with pytest.raises(UnsupportedRequest, match="drops parts"):
            require_kept(*self.files(after, section))
