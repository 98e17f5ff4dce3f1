from __future__ import annotations

import struct
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from committerd.errors import CorruptTable
from committerd.lance.format.byte_range import ByteRange
from committerd.lance.format.manifest_file import ManifestFile, decode, encode, missing, section_length
from committerd_common.messages import (
    UUID,
    DataFragment,
    DeletionFile,
    IndexMetadata,
    IndexSection,
    Manifest,
    Message,
    Transaction,
)
from tests.lance.format.golden_tables import (
    GOLDEN,
    TABLES,
    both_writers,
    every_version,
    facts,
    manifest_bytes,
    manifest_file,
)
from tests.lance.format.messages_strategy import indices, manifests, transactions

# Version 3 of a table of 4.0.0: two deletions of one fragment, the second one rebased.
REBASED_DELETE = b64decode(
    "mgAAAAgCEiRmNTNhODM0OC05Mjk5LTRmZDAtODU5Ni00ZDFiMWQ2NGMwMDKqBm8KWxJFCjgxMTAwMTExMTAwMTEwMTExMD"
    "AwMTAxMDBmNTc0Zjk0YzA4ODMzNmNjMDIxMGFmZWRkMi5sYW5jZRIBABoBACACMJIFGhAIARACGIXX5Puz6ez5RCAUIGQa"
    "EGlkPj0yMCBhbmQgaWQ8MzDcAAAAChoSAmlkIP///////////wEqBWludDMyMAE4ARJbEkUKODExMDAxMTExMDAxMTAxMT"
    "EwMDAxMDEwMGY1NzRmOTRjMDg4MzM2Y2MwMjEwYWZlZGQyLmxhbmNlEgEAGgEAIAIwkgUaEAgBEAIYhdfk+7Pp7PlEIBQg"
    "ZBgDOgwIzuSC2AYQ0czQnAJIAVABWABiKjItZjUzYTgzNDgtOTI5OS00ZmQwLTg1OTYtNGQxYjFkNjRjMDAyLnR4bmoOCg"
    "VsYW5jZRIFNC4wLjB6DAoFbGFuY2USAzIuMKgBAJ4AAAAAAAAAAAACAExBTkM="
)
# Version 1 of a table of 14.0.2: the transaction's position is in field 23.
CREATED_BY_14 = b64decode(
    "0gAAABIkN2IzOGU4NDQtMGYxNi00MjVkLThkM2UtNGIxZjYxOWFjMTJksgaoAQpPEksKODExMDExMTAxMDExMDAwMTAwMD"
    "AxMTAwMTJlNDZlYTQxMWJiZGM5Yjc2M2UyMzQ1NTk5LmxhbmNlEgMAAQIaAwABAiACKAIw2xQgZBIaEgJpZCD/////////"
    "//8BKgVpbnQzMjABOAESHBIBcxgBIP///////////wEqBnN0cmluZzABOAISGxIBbhgCIP///////////wEqBWludDY0MA"
    "E4AQgBAAAKGhICaWQg////////////ASoFaW50MzIwATgBChwSAXMYASD///////////8BKgZzdHJpbmcwATgCChsSAW4Y"
    "AiD///////////8BKgVpbnQ2NDABOAESTxJLCjgxMTAxMTEwMTAxMTAwMDEwMDAwMTEwMDEyZTQ2ZWE0MTFiYmRjOWI3Nj"
    "NlMjM0NTU5OS5sYW5jZRIDAAECGgMAAQIgAigCMNsUIGQYAToMCJjjgtgGEIqAq/ABWABiKjAtN2IzOGU4NDQtMGYxNi00"
    "MjVkLThkM2UtNGIxZjYxOWFjMTJkLnR4bmoPCgVsYW5jZRIGMTQuMC4yegwKBWxhbmNlEgMyLjK4AQDWAAAAAAAAAAAAAg"
    "BMQU5D"
)


def transaction_of(file: ManifestFile) -> Transaction:
    assert file.transaction is not None
    return file.transaction


def packed(*sections: Message, manifest: Manifest, before: bytes = b"") -> bytes:
    """A manifest object with exactly these sections, whatever the manifest says of their places."""
    body = before
    for section in sections:
        body += struct.pack("<I", section.ByteSize()) + section.SerializeToString()
    footer = struct.pack("<qhh4s", len(body), 0, 2, b"LANC")
    return body + struct.pack("<I", manifest.ByteSize()) + manifest.SerializeToString() + footer


def test_a_manifest_of_pylance_4_is_read() -> None:
    file = decode(REBASED_DELETE)
    assert file.version == 3
    assert file.manifest.reader_feature_flags == file.manifest.writer_feature_flags == 1
    (fragment,) = file.manifest.fragments
    assert fragment.deletion_file == DeletionFile(
        file_type=DeletionFile.BITMAP, read_version=2, id=4968511949688613765, num_deleted_rows=20
    )
    assert fragment.physical_rows == 100
    assert file.manifest.transaction_section == 0
    assert transaction_of(file).WhichOneof("operation") == "delete"
    assert transaction_of(file).read_version == 2
    assert list(file.indices) == []
    assert not file.manifest.HasField("index_section")


def test_a_manifest_of_pylance_14_is_read_through_field_23() -> None:
    file = decode(CREATED_BY_14)
    assert file.version == 1
    assert not file.manifest.HasField("transaction_section")
    assert file.manifest.transaction_section_v14 == 0
    assert transaction_of(file).WhichOneof("operation") == "overwrite"
    assert file.manifest.data_format.version == "2.2"


@pytest.mark.parametrize("version", every_version())
def test_every_golden_version_has_what_pylance_reads(version: tuple[str, str, int]) -> None:
    writer, table, number = version
    file = manifest_file(*version)
    expected = facts(writer)[table][str(number)]
    assert file.version == number
    found = {str(fragment.id): fragment.physical_rows for fragment in file.manifest.fragments}
    assert found == {key: each["physical_rows"] for key, each in expected["fragments"].items()}
    assert sorted(index.name for index in file.indices) == sorted(expected["indices"])
    assert file.manifest.HasField("index_section") == bool(expected["indices"])
    assert file.manifest.index_section == 0
    transaction_file = GOLDEN / writer / table / "_transactions" / file.manifest.transaction_file
    assert Transaction.FromString(transaction_file.read_bytes()) == file.transaction
    assert file.transaction_bytes is not None
    assert Transaction.FromString(file.transaction_bytes) == file.transaction


@both_writers
def test_a_rebased_deletion_names_the_version_that_it_was_rebased_on(writer: str) -> None:
    file = manifest_file(writer, "rebased_delete", 3)
    assert transaction_of(file).read_version == 2
    assert file.manifest.fragments[0].deletion_file.file_type == DeletionFile.BITMAP
    assert file.manifest.fragments[0].deletion_file.read_version == 2


@given(manifests, st.lists(indices, max_size=2), transactions)
def test_what_is_encoded_is_decoded(manifest: Manifest, listed: list[IndexMetadata], transaction: Transaction) -> None:
    body = encode(manifest, listed, transaction)
    file = decode(body)
    assert list(file.indices) == listed
    assert file.transaction == transaction
    assert file.manifest.HasField("index_section") == bool(listed)
    assert not file.manifest.HasField("transaction_section_v14")
    found = file.manifest
    for place in ("index_section", "transaction_section", "transaction_section_v14"):
        found.ClearField(place)
        manifest.ClearField(place)
    assert found == manifest


@given(manifests, st.lists(indices, max_size=2), transactions)
def test_encoding_leaves_its_arguments_alone_and_gives_the_same_bytes_again(
    manifest: Manifest, listed: list[IndexMetadata], transaction: Transaction
) -> None:
    before = [each.SerializeToString(deterministic=True) for each in (manifest, *listed)]
    body = encode(manifest, listed, transaction)
    assert encode(manifest, listed, transaction) == body
    again = Transaction.FromString(transaction.SerializeToString())
    assert encode(Manifest.FromString(before[0]), listed, again) == body
    assert [each.SerializeToString(deterministic=True) for each in (manifest, *listed)] == before


@given(manifests, st.lists(indices, max_size=2), transactions, st.data())
def test_a_tail_of_any_size_needs_at_most_one_more_read(
    manifest: Manifest, listed: list[IndexMetadata], transaction: Transaction, data: st.DataObject
) -> None:
    body = encode(manifest, listed, transaction)
    size = len(body)
    tail = body[-data.draw(st.integers(16, size)) :]
    needed = missing(tail, size)
    if needed is not None:
        assert 0 <= needed.start < needed.end == size - len(tail)
        tail = body[needed.start : needed.end] + tail
        assert missing(tail, size) is None
    assert decode(tail, size) == decode(body)


def test_a_tail_that_holds_the_manifest_asks_for_the_sections_before_it() -> None:
    transaction = Transaction(uuid="u", append=Transaction.Append(fragments=[DataFragment(id=1)]))
    index = IndexMetadata(uuid=UUID(uuid=bytes(16)), name="x")
    # Column values of an old table: bytes before all sections, which are not needed.
    values = b"values of a dictionary"
    start = len(values)
    manifest = Manifest(version=2, index_section=start)
    section = IndexSection(indices=[index])
    manifest.transaction_section = start + 4 + section.ByteSize()
    body = packed(section, transaction, manifest=manifest, before=values)
    size = len(body)
    assert missing(body[-20:], size) == ByteRange(0, size - 20)
    tail = body[-(manifest.ByteSize() + 4 + 16) :]
    assert missing(tail, size) == ByteRange(start, size - len(tail))
    file = decode(body[start:], size)
    assert list(file.indices) == [index]
    assert file.transaction == transaction


def test_decoding_a_tail_that_is_too_short_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="manifest begins before the bytes given"):
        decode(REBASED_DELETE[-100:], len(REBASED_DELETE))
    with pytest.raises(ValueError, match="section begins before the bytes given"):
        decode(REBASED_DELETE[-260:], len(REBASED_DELETE))


def damaged(position: int, replacement: bytes, body: bytes = REBASED_DELETE) -> bytes:
    """`replacement` at a position, which counts from the end when it is negative."""
    start = position % len(body)
    return body[:start] + replacement + body[start + len(replacement) :]


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b"", "manifest_too_short", "of 0 bytes: it is shorter than the footer"),
        (b"LANC", "manifest_too_short", "of 4 bytes: it is shorter than the footer"),
        (damaged(-4, b"PAR1"), "manifest_magic", r"ends in b'PAR1', not in b'LANC'"),
        (REBASED_DELETE[:-1], "manifest_magic", "of 397 bytes: it ends in"),
        (damaged(-16, struct.pack("<q", -1)), "manifest_position", "puts the manifest at byte -1"),
        (damaged(-16, struct.pack("<q", 379)), "manifest_position", "puts the manifest at byte 379"),
        (damaged(-16, struct.pack("<q", 157)), "manifest_length", "said to have"),
        (damaged(-16, struct.pack("<q", 378)), "manifest_length", "but 0 lie before the footer"),
        (damaged(162, b"\xff\xff\xff"), "manifest_bytes", "the manifest can't be decoded"),
    ],
)
def test_a_damaged_manifest_object_says_what_is_wrong(body: bytes, code: str, message: str) -> None:
    with pytest.raises(CorruptTable, match=message) as caught:
        decode(body)
    assert caught.value.code == code
    if body:
        with pytest.raises(CorruptTable):
            missing(body, len(body))


@pytest.mark.parametrize("position", [1, 31, 2**64 - 1])
def test_an_index_section_that_does_not_fit_before_the_manifest_is_corrupt(position: int) -> None:
    transaction = Transaction(uuid="some uuid of many bytes")
    manifest = Manifest(version=9, index_section=position, transaction_section=0)
    with pytest.raises(CorruptTable, match="version 9: its index section is said to be at") as found:
        decode(packed(transaction, manifest=manifest))
    assert found.value.code == "index_section"


def test_an_index_section_that_is_none_is_corrupt() -> None:
    manifest = Manifest(version=9, index_section=0)
    with pytest.raises(CorruptTable, match="its index section can't be decoded") as found:
        decode(packed(UUID(uuid=b"\xff" * 16), manifest=manifest))
    assert found.value.code == "index_section"


def test_a_version_without_an_inline_transaction_is_read() -> None:
    file = decode(packed(manifest=Manifest(version=4, transaction_file="3-u.txn")))
    assert file.transaction is None
    assert file.transaction_bytes is None
    assert file.manifest.transaction_file == "3-u.txn"


def test_both_positions_lead_to_the_transaction_and_23_counts_first() -> None:
    first, second = Transaction(uuid="first"), Transaction(uuid="second")
    at_second = 4 + first.ByteSize()
    both = Manifest(transaction_section=at_second, transaction_section_v14=0)
    assert decode(packed(first, second, manifest=both)).transaction == first
    one = Manifest(transaction_section=at_second)
    assert decode(packed(first, second, manifest=one)).transaction == second


def test_a_position_in_23_that_an_older_layout_left_behind_does_not_hide_the_transaction() -> None:
    index = IndexSection(indices=[IndexMetadata(uuid=UUID(uuid=b"\xff" * 16), name="x")])
    transaction = Transaction(uuid="some uuid of many bytes", append=Transaction.Append())
    place = 4 + index.ByteSize()
    for stale in range(place + 40):
        if stale == place:
            continue
        manifest = Manifest(version=5, index_section=0, transaction_section=place, transaction_section_v14=stale)
        assert decode(packed(index, transaction, manifest=manifest)).transaction == transaction


def test_an_inline_transaction_that_can_not_be_decoded_counts_as_none() -> None:
    without_uuid = Transaction(read_version=7).SerializeToString()
    for section in (b"\xff", without_uuid):
        placed = struct.pack("<I", len(section)) + section
        manifest = Manifest(version=4, transaction_section=0)
        file = decode(packed(manifest=manifest, before=placed))
        assert file.transaction is None
        assert file.transaction_bytes is None


def test_a_transaction_is_read_from_a_version_that_we_could_not_write_on() -> None:
    newer = Transaction.FromString(
        Transaction(uuid="u", read_version=3).SerializeToString() + b"\x9a\x07\x00"  # number 115
    )
    manifest = Manifest(version=4, transaction_section=0, writer_feature_flags=2**40, clustering=b"")
    file = decode(packed(newer, manifest=manifest))
    assert transaction_of(file).uuid == "u"
    assert transaction_of(file).WhichOneof("operation") is None


@pytest.mark.parametrize("table", TABLES)
def test_the_next_version_of_a_table_of_pylance_14_has_no_field_23(table: str) -> None:
    file = manifest_file("14.0.2", table, 2)
    assert file.manifest.HasField("transaction_section_v14")
    body = encode(file.manifest, file.indices, transaction_of(file))
    (position,) = struct.unpack("<q", body[-16:-8])
    numbers = {field.number for field, _ in Manifest.FromString(body[position + 4 : -16]).ListFields()}
    assert 21 in numbers
    assert 23 not in numbers
    assert body[-8:] == struct.pack("<hh4s", 0, 2, b"LANC")


def test_a_manifest_above_64_kib_is_read_in_two_parts() -> None:
    manifest = decode(manifest_bytes("4.0.0", "plain", 5)).manifest
    for fragment_id in range(2, 2000):
        manifest.fragments.add().CopyFrom(manifest.fragments[0])
        manifest.fragments[-1].id = fragment_id
    body = encode(manifest, [], Transaction(uuid="u"))
    assert len(body) > 2 * 65536
    tail = body[-65536:]
    needed = missing(tail, len(body))
    assert needed == ByteRange(0, len(body) - 65536)
    assert decode(body[: needed.end] + tail) == decode(body)


@given(manifests, transactions)
def test_a_transaction_in_front_says_its_length(manifest: Manifest, transaction: Transaction) -> None:
    body = encode(manifest, [], transaction)
    assert section_length(body[:4]) == transaction.ByteSize()
