"""The indices that a version keeps, and the fragments that each still covers."""

from __future__ import annotations

import pytest
from pyroaring import BitMap, BitMap64

from committerd.errors import InvalidRequest
from committerd.lance.versions.indices import KeepsEmpty, holds_addresses, retained, rewritten_coverage, with_moved_rows
from committerd_common.messages import IndexMetadata
from tests.lance import samples
from tests.lance.samples import column, index, vector_index

FRAGMENTS = BitMap64([0, 1])


def kept(*indices: IndexMetadata, keeps: KeepsEmpty = KeepsEmpty.ALL) -> list[int]:
    """Numbers of the indices that stay."""
    found = retained(indices, [column(0), column(1)], FRAGMENTS, keeps=keeps)
    return [int.from_bytes(one.uuid.uuid, "big") for one in found]


def test_an_index_on_a_dropped_field_goes() -> None:
    assert kept(index(1, fields=[7]), index(2, fields=[0, 7]), index(3, fields=[0])) == [3]


def test_system_indices_stay() -> None:
    assert kept(samples.reuse_index(1, ([8], [9])), samples.mem_wal_index(2)) == [1, 2]


KINDS = [
    "BTree",
    "Bitmap",
    "LabelList",
    "Inverted",
    "NGram",
    "ZoneMap",
    "BloomFilter",
    "RTree",
    "FM",
    "Vector",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fragments", [None, [], [7]])
def test_an_only_segment_of_nothing_stays(kind: str, fragments: list[int] | None) -> None:
    """Indices of every kind; where Lance 4 writes, not vector indices."""
    one = index(1, fragments=fragments)
    one.index_details.type_url = f"/lance.table.{kind}IndexDetails"
    assert kept(one) == [1]
    assert kept(one, keeps=KeepsEmpty.SCALAR) == ([] if kind == "Vector" else [1])


@pytest.mark.parametrize("keeps", KeepsEmpty)
def test_of_several_segments_of_nothing_the_oldest_stays(keeps: KeepsEmpty) -> None:
    segments = [index(number, name="x", fragments=[7], version=number) for number in (3, 1, 2)]
    assert kept(*segments, keeps=keeps) == [1]


def test_the_oldest_is_that_which_was_created_first() -> None:
    """Lance 14; merges and remaps change `dataset_version`."""
    segments = [index(number, name="x", fragments=[7], version=number) for number in (1, 2, 3)]
    segments[1].created_at, segments[2].created_at = 200, 100
    assert kept(*segments) == [3]
    assert kept(*segments, keeps=KeepsEmpty.SCALAR) == [1]


def test_of_several_vector_segments_of_nothing() -> None:
    segments = [vector_index(number, name="x", fragments=[7], version=number) for number in (2, 1)]
    assert kept(*segments) == [1]
    assert kept(*segments, keeps=KeepsEmpty.SCALAR) == []


def test_segments_that_cover_something_stay() -> None:
    segments = [
        index(1, name="x", fragments=[7]),
        index(2, name="x", fragments=[1, 7]),
        index(3, name="x", fragments=[0]),
        index(4, name="x", fragments=None),
    ]
    assert kept(*segments) == [2, 3, 4]
    assert kept(*segments, keeps=KeepsEmpty.SCALAR) == [2, 3]


def test_a_list_is_not_cleaned_of_fragments_that_are_gone() -> None:
    (same,) = retained([index(1, fragments=[0, 7])], [column(0)], FRAGMENTS, keeps=KeepsEmpty.ALL)
    assert same.fragment_bitmap == samples.bitmap([0, 7])


def test_a_group_is_covered_wholly_or_not_at_all() -> None:
    covered = rewritten_coverage(BitMap([0, 1, 2]), [((0, 1), (9,)), ((5, 6), (8,))], name="x")
    assert list(covered) == [2, 9]
    with pytest.raises(InvalidRequest, match=r"\[0, 5\]"):
        rewritten_coverage(BitMap([0]), [((5, 0), (9,))], name="x")


def test_nothing_moved_nothing_covered() -> None:
    one = index(1)
    assert with_moved_rows([one], moved_to=[], moved_from=[0], changed_fields=[]) == [one]


def test_system_indices_cover_no_rows() -> None:
    one = samples.reuse_index(1, ([8], [0]))
    assert with_moved_rows([one], moved_to=[5], moved_from=[0], changed_fields=[]) == [one]


@pytest.mark.parametrize(
    ("details", "version", "wanted"),
    [
        ("ZoneMapIndexDetails", 0, True),
        ("BloomFilterIndexDetails", 0, True),
        ("BTreeIndexDetails", 0, False),
        ("BTreeIndexDetails", 1, True),
        ("BitmapIndexDetails", 1, False),
    ],
)
def test_which_indices_name_rows_by_address(details: str, version: int, wanted: bool) -> None:
    one = index(1)
    one.index_details.type_url = f"/lance.table.{details}"
    one.index_version = version
    assert holds_addresses(one) is wanted
