"""Row ids: assigned to new rows, kept by rows that move; and the versions of rows."""

from __future__ import annotations

import time

import pytest
from pyroaring import BitMap

from committerd.errors import InvalidRequest
from committerd.lance.versions.lineage import (
    assign_row_ids,
    require_free_row_ids,
    require_known_row_ids,
    require_rows_live_in,
    require_rows_of,
    require_unchanged_row_ids,
    stamp_changed_offsets,
    stamp_moved_rows,
)
from committerd_common.messages import DataFragment
from committerd_common.row_ids import (
    ROW_ID_MAX,
    VersionRun,
    count_row_ids,
    decode_row_ids,
    decode_versions,
    encode_versions,
)
from tests.lance.samples import fragment, with_row_ids


def test_rows_without_ids_get_the_next() -> None:
    made = fragment(0, rows=100)
    assert assign_row_ids([made], 0) == 100
    assert list(decode_row_ids(made.inline_row_ids, fragment=0, staged=False)) == list(range(100))


def test_rows_with_ids_keep_them() -> None:
    made = with_row_ids(fragment(0, rows=50), [range(50)])
    before = made.inline_row_ids
    assert assign_row_ids([made], 100) == 100
    assert made.inline_row_ids == before


def test_the_last_rows_are_those_without() -> None:
    made = with_row_ids(fragment(0, rows=50), [range(30)])
    assert assign_row_ids([made], 100) == 120
    found = decode_row_ids(made.inline_row_ids, fragment=0, staged=False)
    assert list(found) == [*range(30), *range(100, 120)]
    assert len(found.segments) == 1


def test_ids_that_the_table_may_still_give_out_are_free() -> None:
    assert require_free_row_ids([fragment(0)], 100) == 100
    made = [with_row_ids(fragment(0, rows=3), [range(205, 208)]), with_row_ids(fragment(1, rows=9), [range(100, 105)])]
    assert require_free_row_ids(made, 100) == 208
    assert assign_row_ids(made, 208) == 212


@pytest.mark.parametrize(
    ("ids", "rows", "message"),
    [
        ([range(60)], 50, "60 row ids and 50 rows"),
        ([range(99, 105)], 6, "row id 99, but the table has given out all below 100"),
        ([range(2**41, 2**41 + 6)], 6, "too far above the table's next row id, 100"),
        ([range(200, 203), range(202, 205)], 6, "brings 1 row ids twice"),
        (
            [range(200, 200 + 2**32), range(2**32, 2**33), range(2**33, 2**33 + 1)],
            2**34,
            "at most 8589934592 are allowed",
        ),
    ],
)
def test_ids_that_are_not_free(ids: list[range], rows: int, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        require_free_row_ids([with_row_ids(fragment(3, rows=rows), ids)], 100)
    assert refused.value.code == "row_ids"


def test_rows_that_moved_have_ids_that_were_given_out() -> None:
    require_known_row_ids([fragment(0), with_row_ids(fragment(1), [range(90, 100)])], 100)
    with pytest.raises(InvalidRequest, match="given out none above 99"):
        require_known_row_ids([with_row_ids(fragment(1), [range(91, 101)])], 100)
    twice = [with_row_ids(fragment(number), [range(10)]) for number in (1, 2)]
    with pytest.raises(InvalidRequest, match="brings 10 row ids twice"):
        require_known_row_ids(twice, 100)


def test_what_is_replaced_brings_no_rows_of_others() -> None:
    old = [with_row_ids(fragment(number), [range(10 * number, 10 * number + 10)]) for number in (0, 1)]
    require_rows_of(old, [with_row_ids(fragment(2, rows=14), [range(15, 20), range(1, 10)])])
    with pytest.raises(InvalidRequest, match="1 rows, such as the row with id 20") as refused:
        require_rows_of(old, [with_row_ids(fragment(2), [range(11, 21)])])
    assert refused.value.code == "row_ids"


def test_ids_stay_whatever_they_are_written_as() -> None:
    before = with_row_ids(fragment(0), [range(10)])
    require_unchanged_row_ids(before, with_row_ids(fragment(0), [range(4), range(4, 10)]))
    for other in ([range(1, 11)], [range(5), range(6, 11)], [range(5, 10), range(5)]):
        with pytest.raises(InvalidRequest, match="other row ids than before"):
            require_unchanged_row_ids(before, with_row_ids(fragment(0), other))


def test_very_many_rows_are_topped_up_without_listing_them() -> None:
    for given in ([range(3)], [range(2, 4), range(1)]):
        made = with_row_ids(fragment(0, rows=2**32 - 1), given)
        started = time.process_time()
        assert assign_row_ids([made], 100) == 100 + 2**32 - 4
        assert time.process_time() - started < 1
        assert len(made.inline_row_ids) < 100
        assert count_row_ids(made.inline_row_ids, fragment=0, staged=True) == 2**32 - 1


def test_fragments_are_served_in_order() -> None:
    first, second = fragment(0, rows=30), with_row_ids(fragment(1, rows=25), [range(500, 520)])
    assert assign_row_ids([first, second], 1000) == 1035
    assert list(decode_row_ids(first.inline_row_ids, fragment=0, staged=False)) == list(range(1000, 1030))
    assert list(decode_row_ids(second.inline_row_ids, fragment=1, staged=False)) == [
        *range(500, 520),
        *range(1030, 1035),
    ]


def test_a_table_that_has_given_out_all_ids_is_refused() -> None:
    assert assign_row_ids([fragment(0, rows=10)], ROW_ID_MAX - 10) == ROW_ID_MAX
    with pytest.raises(InvalidRequest, match="has given out all row ids") as refused:
        assign_row_ids([fragment(0, rows=10)], ROW_ID_MAX - 9)
    assert refused.value.code == "row_ids"


def test_rows_that_move_are_in_a_fragment_that_loses_rows() -> None:
    newest_first = [with_row_ids(fragment(number), [range(10 * number, 10 * number + 10)]) for number in (1, 0)]
    moved = [fragment(3), with_row_ids(fragment(2, rows=2), [range(10, 12)])]
    require_rows_live_in([newest_first[0]], [(moved, {1})], newest_first)
    with pytest.raises(InvalidRequest, match="the new fragments have 2 rows, such as the row with id 10") as refused:
        require_rows_live_in([newest_first[1]], [(moved, {0})], newest_first)
    assert refused.value.code == "row_ids"


def test_a_row_that_a_compaction_copied_while_it_moved_lives_where_it_moved_to() -> None:
    def stamped(number: int, deleted: int, *runs: VersionRun) -> DataFragment:
        made = with_row_ids(fragment(number, rows=3, deleted=deleted), [range(10, 13)])
        made.inline_last_updated_at_versions = encode_versions(runs)
        return made

    moved = [with_row_ids(fragment(9, rows=2), [range(11, 13)])]
    copy, home = stamped(7, 2, VersionRun(3, 4)), stamped(5, 0, VersionRun(1, 4), VersionRun(2, 6))
    require_rows_live_in([home], [(moved, {5})], [copy, home])
    empty = with_row_ids(fragment(1, rows=1), [])
    for left in ([stamped(5, 0, VersionRun(2, 6), VersionRun(1, 4))], [empty]):
        with pytest.raises(InvalidRequest, match="such as the row with id 1") as refused:
            require_rows_live_in(left, [(moved, {one.id for one in left})], [copy, *left])
        assert refused.value.code == "row_ids"


def test_rows_keep_the_version_that_created_them() -> None:
    existing = [with_row_ids(fragment(number), [range(10 * number, 10 * number + 10)]) for number in (0, 1)]
    for number, one in enumerate(existing):
        one.inline_created_at_versions = encode_versions([VersionRun(10, number + 5)])
    moved = with_row_ids(fragment(2, rows=3), [range(12, 14), range(30, 31)])
    stamp_moved_rows([moved], existing, 9)
    created = decode_versions(moved.inline_created_at_versions, fragment=2, staged=False)
    assert created == [VersionRun(2, 6), VersionRun(1, 9)]


def test_changed_offsets_need_a_version_for_each_row() -> None:
    made = fragment(0, rows=10)
    made.inline_last_updated_at_versions = encode_versions([VersionRun(10, 3)])
    stamp_changed_offsets(made, BitMap([9]), 4)
    changed = decode_versions(made.inline_last_updated_at_versions, fragment=0, staged=False)
    assert changed == [VersionRun(9, 3), VersionRun(1, 4)]
    made.inline_last_updated_at_versions = encode_versions([VersionRun(9, 3)])
    with pytest.raises(InvalidRequest, match="has versions for 9 rows, and 10 rows") as refused:
        stamp_changed_offsets(made, BitMap([8]), 4)
    assert refused.value.code == "row_versions"
