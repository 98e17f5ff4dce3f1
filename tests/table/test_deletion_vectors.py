"""The content of deletion files is kept within a bound, and only used where it fits."""

from __future__ import annotations

from pyroaring import BitMap

from committerd.table.deletion_vectors import DeletionVectors
from tests.lance.samples import fragment


def test_what_was_read_or_written_is_kept() -> None:
    found: list[bool] = []
    vectors = DeletionVectors(note=found.append)
    assert vectors.get("s3://a", "k", fragment(0, deleted=2)) is None
    vectors.keep("s3://a", "k", BitMap([1, 2]))
    assert vectors.get("s3://a", "k", fragment(0, deleted=2)) == BitMap([1, 2])
    assert vectors.get("s3://b", "k", fragment(0, deleted=2)) is None
    assert found == [False, True, False]


def test_what_does_not_fit_the_fragment_is_not_taken_for_its_rows() -> None:
    vectors = DeletionVectors()
    vectors.keep("", "k", BitMap([1, 20]))
    assert vectors.get("", "k", fragment(0, rows=100, deleted=3)) is None
    assert vectors.get("", "k", fragment(0, rows=20, deleted=2)) is None
    uncounted = fragment(0, rows=100, deleted=2)
    uncounted.deletion_file.num_deleted_rows = 0
    assert vectors.get("", "k", uncounted) == BitMap([1, 20])


def test_the_least_recently_used_are_dropped_first() -> None:
    vectors = DeletionVectors(5 * 600)
    for number in range(4):
        vectors.keep("", f"k{number}", BitMap([number]))
    assert vectors.get("", "k0", fragment(0, deleted=1)) is not None
    for number in range(4, 7):
        vectors.keep("", f"k{number}", BitMap([number]))
    assert vectors.bytes <= 3000
    assert vectors.get("", "k0", fragment(0, deleted=1)) is not None
    assert vectors.get("", "k1", fragment(0, deleted=1)) is None
    before = vectors.bytes
    vectors.keep("", "k0", BitMap([0]))
    assert vectors.bytes == before
    vectors.keep("", "large", BitMap(range(0, 100_000, 3)))
    assert vectors.get("", "large", fragment(0, rows=100_000, deleted=33_334)) is None
