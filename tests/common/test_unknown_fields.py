from __future__ import annotations

from typing import TypeVar

import pytest

from committerd_common.messages import (
    BTreeIndexDetails,
    DataFile,
    DataFragment,
    IndexMetadata,
    Manifest,
    Message,
    Transaction,
)
from committerd_common.unknown_fields import has_unknown_fields, unknown_fields
from tests.lance.format.golden_tables import every_version, manifest_file

M = TypeVar("M", bound=Message)

OVERLAYS = b"\x5a\x00"  # number 11, no bytes
NUMBER_200 = b"\xc2\x0c\x02hi"


def with_unknown(message: M, field: bytes) -> M:
    return type(message).FromString(message.SerializeToString() + field)


def test_each_unknown_field_is_named_by_its_path() -> None:
    fragment = with_unknown(DataFragment(id=1), OVERLAYS)
    file = with_unknown(DataFile(path="a"), NUMBER_200)
    transaction = with_unknown(Transaction(uuid="u"), NUMBER_200)
    transaction.update.updated_fragments.extend([DataFragment(id=7), fragment])
    transaction.update.new_fragments.add(files=[DataFile(path="b"), file])
    transaction.update.inserted_rows.exact.MergeFromString(OVERLAYS)
    transaction.update.updated_fragment_offsets[9].MergeFromString(OVERLAYS)
    transaction.update.updated_fragment_offset_bitmaps[9] = b"x"
    transaction.transaction_properties["k"] = "v"
    assert has_unknown_fields(transaction)
    assert unknown_fields(transaction) == [
        "Transaction#200",
        "Transaction.update.updated_fragments[1]#11",
        "Transaction.update.new_fragments[0].files[1]#200",
        "Transaction.update.inserted_rows.exact#11",
        "Transaction.update.updated_fragment_offsets[9]#11",
    ]


def test_an_operation_of_a_newer_version_is_an_unknown_field() -> None:
    transaction = with_unknown(Transaction(uuid="u"), b"\x9a\x07\x00")
    assert transaction.WhichOneof("operation") is None
    assert unknown_fields(transaction) == ["Transaction#115"]


def test_a_repeated_unknown_field_is_listed_once() -> None:
    assert unknown_fields(with_unknown(DataFragment(), OVERLAYS * 3 + NUMBER_200)) == [
        "DataFragment#11",
        "DataFragment#200",
    ]


def test_a_known_number_of_another_wire_type_is_unknown() -> None:
    assert unknown_fields(DataFragment.FromString(b"\x0a\x01x")) == ["DataFragment#1"]


@pytest.mark.parametrize(("limit", "listed"), [(1, 1), (5, 5), (20, 7)])
def test_no_more_than_the_limit_are_listed(limit: int, listed: int) -> None:
    fragment = with_unknown(DataFragment(id=1), OVERLAYS)
    manifest = Manifest(fragments=[fragment] * 7)
    assert len(unknown_fields(manifest, limit=limit)) == listed
    assert unknown_fields(manifest, limit=1) == ["Manifest.fragments[0]#11"]


def test_known_fields_and_what_an_any_wraps_are_not_listed() -> None:
    index = IndexMetadata(name="i")
    index.index_details.value = with_unknown(BTreeIndexDetails(), OVERLAYS).SerializeToString()
    assert not has_unknown_fields(index)
    assert unknown_fields(index) == []


@pytest.mark.parametrize("version", every_version())
def test_nothing_that_pylance_writes_by_default_is_unknown(version: tuple[str, str, int]) -> None:
    file = manifest_file(*version)
    assert file.transaction is not None
    for message in (file.manifest, file.index_section, file.transaction):
        assert unknown_fields(message) == []


def test_looking_changes_nothing() -> None:
    fragment = with_unknown(DataFragment(id=1), OVERLAYS)
    before = fragment.SerializeToString()
    assert has_unknown_fields(fragment)
    assert fragment.SerializeToString() == before
