"""The content of fragment reuse indices is kept within a bound, and only for the very same index."""

from __future__ import annotations

from committerd.table.kept_reuse import KeptReuse
from tests.lance.samples import reuse_content, reuse_index


def test_what_was_read_is_kept_for_the_same_index() -> None:
    kept, index = KeptReuse(), reuse_index(1, ([0], [5]))
    assert kept.get(index) is None
    content = reuse_content(index.index_details.value)
    kept.keep(index, content)
    assert kept.get(reuse_index(1, ([0], [5]))) is content
    assert kept.get(reuse_index(1, ([0], [6]))) is None
    assert kept.get(reuse_index(2, ([0], [5]))) is None
    kept.clear()
    assert (kept.get(index), kept.bytes) == (None, 0)


def test_the_least_recently_used_are_dropped_first() -> None:
    indices = [reuse_index(number, ([0], [5])) for number in range(4)]
    content = reuse_content(indices[0].index_details.value)
    measured = KeptReuse()
    measured.keep(indices[0], content)
    kept = KeptReuse(3 * measured.bytes)
    for index in indices[:3]:
        kept.keep(index, content)
    assert kept.get(indices[0]) is content
    kept.keep(indices[3], content)
    assert kept.bytes == 3 * measured.bytes
    assert [kept.get(index) is content for index in indices] == [True, False, True, True]
    kept.keep(indices[3], content)
    assert kept.bytes == 3 * measured.bytes
    large = reuse_index(9, *[([number], [number + 1]) for number in range(20)])
    kept.keep(large, reuse_content(large.index_details.value))
    assert kept.get(large) is None
