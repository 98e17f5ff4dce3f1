"""Where a Rewrite put rows: by their order, by their ids, or not known."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from pyroaring import BitMap

from committerd.errors import CorruptTable, InvalidRequest
from committerd.lance.versions import moves
from committerd.lance.versions.moves import MovedGroup, moved_groups
from committerd_common.messages import DataFragment, Transaction
from committerd_common.own_properties import IN_ORDER, ROWS
from committerd_common.row_ids import RowIds, decode_row_ids, encode_row_ids
from tests.lance.samples import fragment, transaction, with_row_ids


def group(old: list[DataFragment], new: list[DataFragment], *, marked: bool = True, staged: bool = False) -> MovedGroup:
    made = transaction(
        rewrite=Transaction.Rewrite(
            groups=[Transaction.Rewrite.RewriteGroup(old_fragments=old, new_fragments=new)],
        )
    )
    if marked:
        made.transaction_properties[ROWS] = IN_ORDER
    (only,) = moved_groups(made, staged=staged)
    return only


def listed(ids: list[int], number: int) -> DataFragment:
    """A fragment with these row ids, in this order."""
    return with_row_ids(fragment(number, rows=len(ids)), [range(one, one + 1) for one in ids])


class TestDoubt:
    def test_there_is_none_if_the_writer_says_so_and_the_counts_add_up(self) -> None:
        assert not group([fragment(1, deleted=2), fragment(2)], [fragment(3, rows=18)]).doubt(trusts_all=False)

    def test_a_writer_who_says_nothing_is_trusted_only_with_the_setting(self) -> None:
        silent = group([fragment(1)], [fragment(3)], marked=False)
        assert "committerd.rows" in silent.doubt(trusts_all=False)
        assert not silent.doubt(trusts_all=True)

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            (fragment(1, deleted=2), fragment(3), "had 8 rows, and its new ones have 10"),
            (fragment(1), fragment(0), "no ids that were reserved"),
        ],
    )
    def test_what_can_not_be_in_order_is_trusted_by_nobody(
        self, old: DataFragment, new: DataFragment, said: str
    ) -> None:
        for marked in (False, True):
            assert said in group([old], [new], marked=marked).doubt(trusts_all=True)

    def test_a_deletion_file_must_say_how_many_rows_it_has(self) -> None:
        old = fragment(1, deleted=2)
        old.deletion_file.num_deleted_rows = 0
        assert "does not say how many rows of fragment 1" in group([old], [fragment(3)]).doubt(trusts_all=True)

    def test_staged_fragments_have_no_deletions_but_committed_ones_may(self) -> None:
        for staged in (False, True):
            doubt = group([fragment(1)], [fragment(3, deleted=2)], staged=staged).doubt(trusts_all=False)
            assert doubt == ("its new fragments have deleted rows" if staged else "")

    def test_row_ids_need_no_trust_and_no_counts(self) -> None:
        made = group([listed([5, 6, 7], 1)], [listed([7, 5], 2)], marked=False)
        assert not made.doubt(trusts_all=False)
        assert "no ids that were reserved" in group([listed([5], 1)], [listed([5], 0)]).doubt(trusts_all=True)

    def test_a_group_without_new_fragments_has_no_row_ids(self) -> None:
        assert (
            group([listed([5], 1)], []).doubt(trusts_all=True) == "its old fragments had 1 row, and its new ones have 0"
        )


class TestByOrder:
    def test_a_row_keeps_its_place_among_the_rows_that_were_copied(self) -> None:
        made = group([fragment(7, rows=4, deleted=1), fragment(2, rows=3)], [fragment(8, rows=2), fragment(9, rows=4)])
        # Copied: (7, 0), (7, 2), (7, 3), (2, 0), (2, 1), (2, 2).
        assert made.moved({7: BitMap([0, 3])}, {7: BitMap([1])}).places == {8: BitMap([0]), 9: BitMap([0])}
        assert made.moved({2: BitMap([0, 1, 2])}, {}).places == {9: BitMap([1, 2, 3])}

    def test_rows_that_were_not_copied_are_lost(self) -> None:
        made = group([fragment(1, rows=4, deleted=2)], [fragment(8, rows=2)])
        some = made.moved({1: BitMap([1, 2])}, {1: BitMap([1, 3])})
        assert (some.places, some.lost) == ({8: BitMap([1])}, {1: BitMap([1])})
        none = made.moved({1: BitMap([1])}, {1: BitMap([1, 3])})
        assert (none.places, none.lost) == ({}, {1: BitMap([1])})

    @pytest.mark.parametrize("seed", range(50))
    def test_is_that_of_a_list_of_all_rows(self, seed: int) -> None:
        rng = random.Random(seed)
        rows = {id: rng.randint(1, 6) for id in rng.sample(range(1, 50), 4)}
        dropped = {id: BitMap(rng.sample(range(n), rng.randint(0, n))) for id, n in rows.items()}
        copied = [(id, at) for id, n in rows.items() for at in range(n) if at not in dropped[id]]
        sizes, left = [], len(copied)
        while left:
            sizes.append(rng.randint(1, left))
            left -= sizes[-1]
        new = {100 + place: size for place, size in enumerate(sizes)}
        where = dict(zip(copied, ((id, at) for id, size in new.items() for at in range(size)), strict=True))
        made = group(
            [fragment(id, rows=n, deleted=len(dropped[id])) for id, n in rows.items()],
            [fragment(id, rows=size) for id, size in new.items()],
        )
        some = {id: BitMap(rng.sample(range(n), rng.randint(0, n))) for id, n in rows.items()}
        moved = made.moved(some, dropped)
        assert moved.lost == {id: lost for id, offsets in some.items() if (lost := offsets & dropped[id])}
        found = {(to, at) for to, offsets in moved.places.items() for at in offsets}
        assert found == {where[id, at] for id, offsets in some.items() for at in offsets - dropped[id]}

    def test_a_row_behind_what_was_copied_is_lost(self) -> None:
        # The deletion file has fewer rows than it says.
        made = group([fragment(1, rows=4, deleted=2)], [fragment(8, rows=2)])
        moved = made.moved({1: BitMap([0, 2, 3])}, {1: BitMap([1])})
        assert (moved.places, moved.lost) == ({8: BitMap([0, 1])}, {1: BitMap([3])})
        assert made.moved({1: BitMap([3])}, {1: BitMap([1])}).places == {}

    def test_rows_that_were_dropped_are_not_listed(self) -> None:
        dropped = BitMap()
        dropped.add_range(0, 30_000_000)
        old = fragment(1, rows=30_000_010, deleted=30_000_000)
        made = group([old], [fragment(8, rows=10)])
        tracemalloc.start()
        try:
            moved = made.moved({1: BitMap([5, 30_000_003])}, {1: dropped})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (moved.places, moved.lost) == ({8: BitMap([3])}, {1: BitMap([5])})
        assert peak < 2**20


class TestById:
    def test_finds_rows_in_any_order(self) -> None:
        made = group([listed([5, 9, 6], 1), listed([20], 2)], [listed([20, 6], 8), listed([5], 9)])
        moved = made.moved({1: BitMap([0, 1, 2])}, {1: BitMap([1])})
        assert (moved.places, moved.lost) == ({8: BitMap([1]), 9: BitMap([0])}, {1: BitMap([1])})
        assert made.moved({2: BitMap([0])}, {}).places == {8: BitMap([0])}

    def test_a_row_without_an_id_or_in_no_new_fragment_is_lost(self) -> None:
        short = listed([5, 6], 1)
        short.physical_rows = 3
        moved = group([short], [listed([6], 8)]).moved({1: BitMap([0, 1, 2])}, {})
        assert (moved.places, moved.lost) == ({8: BitMap([0])}, {1: BitMap([0, 2])})

    def test_a_row_that_was_deleted_is_lost_although_another_fragment_has_its_id(self) -> None:
        # An update moved row 5 from fragment 1 to 2 before both were rewritten.
        made = group([listed([5], 1), listed([5], 2)], [listed([5], 8)])
        assert made.moved({1: BitMap([0])}, {1: BitMap([0])}).lost == {1: BitMap([0])}
        assert made.moved({2: BitMap([0])}, {}).places == {8: BitMap([0])}

    def test_runs_of_ids_are_not_listed(self) -> None:
        old = with_row_ids(fragment(1, rows=3_000_000_000), [range(10, 3_000_000_010)])
        new = [
            with_row_ids(fragment(8, rows=2_000_000_000), [range(1_000_000_010, 3_000_000_010)]),
            with_row_ids(fragment(9, rows=1_000_000_000), [range(10, 1_000_000_010)]),
        ]
        moved = group([old], new).moved({1: BitMap([0, 999_999_999, 1_000_000_000])}, {})
        assert moved.places == {8: BitMap([0]), 9: BitMap([0, 999_999_999])}

    @pytest.mark.parametrize("seed", range(50))
    def test_is_that_of_a_list_of_all_rows(self, seed: int) -> None:
        rng = random.Random(seed)
        ids = rng.sample(range(60), 30)
        old = {number: ids[6 * place : 6 * place + 6] for place, number in enumerate(rng.sample(range(1, 50), 5))}
        copied = rng.sample(ids, 25)
        new = {100 + place: copied[9 * place : 9 * place + 9] for place in range(3)}
        where = {id: (number, at) for number, row_ids in new.items() for at, id in enumerate(row_ids)}
        made = group(
            [listed(row_ids, id) for id, row_ids in old.items()], [listed(some, id) for id, some in new.items()]
        )
        some = {id: BitMap(rng.sample(range(6), rng.randint(0, 6))) for id in old}
        moved = made.moved(some, {})
        followed = [(id, at) for id, offsets in some.items() for at in offsets]
        assert {(to, at) for to, offsets in moved.places.items() for at in offsets} == {
            where[old[id][at]] for id, at in followed if old[id][at] in where
        }
        assert {(id, at) for id, offsets in moved.lost.items() for at in offsets} == {
            (id, at) for id, at in followed if old[id][at] not in where
        }

    @pytest.mark.parametrize(
        "new", [[listed([5, 6], 8), listed([5], 9), listed([8], 10)], [listed([6, 5, 5], 8)]], ids=["in two", "in one"]
    )
    def test_a_row_with_several_places_is_lost(self, new: list[DataFragment]) -> None:
        moved = group([listed([5], 1), listed([7, 6], 2)], new).moved({1: BitMap([0]), 2: BitMap([1])}, {})
        assert moved.lost == {1: BitMap([0])}

    def test_the_ids_of_each_fragment_are_decoded_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ids = list(range(400))
        random.Random(0).shuffle(ids)
        old = [listed(ids[4 * number : 4 * number + 4], 1 + number) for number in range(100)]
        new = [listed(ids[:300], 500), listed(ids[300:], 501)]
        decoded: list[int] = []

        def counted(body: bytes, *, fragment: int, staged: bool) -> RowIds:
            decoded.append(fragment)
            return decode_row_ids(body, fragment=fragment, staged=staged)

        monkeypatch.setattr(moves, "decode_row_ids", counted)
        moved = group(old, new).moved({one.id: BitMap([1]) for one in old}, {})
        assert sorted(decoded) == [one.id for one in (*old, *new)]
        assert moved.places == {500: BitMap(range(1, 300, 4)), 501: BitMap(range(1, 100, 4))}

    def test_damaged_ids_are_the_tables_fault(self) -> None:
        old = fragment(1)
        old.inline_row_ids = b"\xff"
        with pytest.raises(CorruptTable):
            group([old], [listed([1], 8)]).moved({1: BitMap([0])}, {})

    def test_damaged_ids_of_a_staged_rewrite_are_its_own_fault(self) -> None:
        new = fragment(8)
        new.inline_row_ids = b"\xff"
        with pytest.raises(InvalidRequest):
            group([listed([1], 1)], [new], staged=True).moved({1: BitMap([0])}, {})

    def test_count_as_memory(self) -> None:
        with_ids = group([listed([5], 1)], [listed([5], 8)])
        without = group([fragment(1, rows=1)], [fragment(8, rows=1)])
        assert with_ids.size == without.size + 2 * len(encode_row_ids(RowIds((range(5, 6),))))
