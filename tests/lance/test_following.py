"""Rows are followed through Rewrites: random histories, what each rule buys, and the cases that they don't have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from pyroaring import BitMap

from committerd.errors import InvalidRequest
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.operations import following
from committerd.lance.operations import rewrite as rewriting
from committerd.lance.operations.rebase import (
    FollowedRows,
    FollowFacts,
    FollowingRebase,
    RebasedTransaction,
    RebaseFacts,
    RowConflict,
)
from committerd.lance.transactions.transaction import footprint, footprint_of_ours, operation_of
from committerd.lance.versions import lineage, moves
from committerd.lance.versions.moves import MovedGroup, MovedRows
from committerd_common.messages import DataFragment, Transaction
from committerd_common.own_properties import EMPTIED, IN_ORDER, ROWS
from tests.lance.operations import B, C, R, create_index, delete, rewrite, update, verdict
from tests.lance.rows_model import run
from tests.lance.samples import fragment, index, manifest, reuse_index, table, transaction, with_row_ids

SEEDS = range(100)
moved = MovedGroup.moved


def with_nothing_dropped(group: MovedGroup, rows: Mapping[int, BitMap], dropped: Mapping[int, BitMap]) -> MovedRows:
    return moved(group, rows, {})


def without_losses(group: MovedGroup, rows: Mapping[int, BitMap], dropped: Mapping[int, BitMap]) -> MovedRows:
    return MovedRows(places=moved(group, rows, dropped).places)


def to_nowhere(places: Mapping[int, BitMap], more: Mapping[int, BitMap]) -> None:
    return


MUTATIONS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "rows are followed to their places": (following, "_add", to_nowhere),
    "rows that were not copied have no place": (moves.MovedGroup, "moved", with_nothing_dropped),
    "who changes a row that was not copied is refused": (moves.MovedGroup, "moved", without_losses),
    "who changes a row that was deleted where it moved is refused": (following, "clash", lambda both: None),
    "a Rewrite without a mark moves rows in any order": (moves.MovedGroup, "doubt", lambda group, trusts_all: ""),
    "an old fragment may be gone": (rewriting, "_emptied", lambda transaction: frozenset()),
    "the copy of a row that moved is dead": (lineage, "_unchanged_since", lambda ids, fragment, others: ids),
}


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_random_histories_end_with_the_rows_of_what_was_committed(stable: bool) -> None:
    assert sum(run(seed, stable=stable).followed for seed in SEEDS) > 200


@pytest.mark.parametrize("rule", MUTATIONS)
def test_without_a_rule_a_history_goes_wrong(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken = MUTATIONS[rule]
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Exception):  # noqa: B017  # the table is wrong, or the next version can't be built
        run_all(range(500))


def run_all(seeds: range) -> None:
    for seed in seeds:
        for stable in (False, True):
            run(seed, stable=stable)


IN_ORDER_ROWS = {ROWS: IN_ORDER}


def in_order(*old: int, new: tuple[DataFragment, ...] = (), version: int = 6) -> tuple[int, Footprint]:
    group = Transaction.Rewrite.RewriteGroup(
        old_fragments=[fragment(one) for one in old],
        new_fragments=new or [fragment(9, rows=10 * len(old))],
    )
    made = transaction(rewrite=Transaction.Rewrite(groups=[group]), transaction_properties=IN_ORDER_ROWS)
    return version, footprint(made, staged=False)


class TestVerdict:
    """Whether rows can be followed, before any deletion file is read."""

    @pytest.mark.parametrize(
        "staged", [delete(fragment(0, deleted=1)), delete(removed=(0,)), update(fragment(0, deleted=1))]
    )
    def test_of_a_delete_and_a_rewrite_in_either_order(self, staged: Transaction) -> None:
        ours, theirs = rewrite(0, properties=IN_ORDER_ROWS), staged
        for unmarked, wanted in ((rewrite(0), R), (ours, B), (rewrite(1), C)):
            assert verdict(staged, unmarked) is wanted
            assert verdict(unmarked, theirs) is wanted

    def test_needs_the_read_version(self) -> None:
        for ours, theirs in (
            (delete(removed=(0,)), rewrite(0, properties=IN_ORDER_ROWS)),
            (rewrite(0, properties=IN_ORDER_ROWS), delete(removed=(0,))),
        ):
            assert verdict(ours, theirs, read=None) is R
            assert verdict(ours, theirs, read=manifest(fragment(1))) is R

    def test_changed_columns_are_never_followed(self) -> None:
        ordered = rewrite(0, properties=IN_ORDER_ROWS)
        for changed in (update(fragment(0, name="other")), delete(fragment(0, name="other"))):
            assert verdict(changed, ordered) is R
            assert verdict(ordered, changed) is R
        assert verdict(update(fragment(0, deleted=1), fields_modified=[1]), ordered) is R

    def test_only_the_groups_that_are_concerned_must_be_in_order(self) -> None:
        both = rewrite(0, properties=IN_ORDER_ROWS)
        both.rewrite.groups.add(old_fragments=[fragment(1)], new_fragments=[fragment(8, rows=3)])
        for place, wanted in ((0, B), (1, R)):
            staged = delete(fragment(place, deleted=1))
            assert verdict(staged, both) is wanted
            assert verdict(both, staged) is wanted

    def test_the_setting_trusts_all_writers(self) -> None:
        for ours, theirs in ((delete(removed=(0,)), rewrite(0)), (rewrite(0), delete(removed=(0,)))):
            touched = footprint_of_ours(ours, manifest(fragment(0), fragment(1)))
            assert verdict(replace(touched, trusts_rewrites=True), theirs) is B


def follow(
    staged: Transaction,
    *theirs: tuple[int, Footprint],
    read: tuple[DataFragment, ...] = (),
    latest: tuple[DataFragment, ...],
    deleted: Mapping[int, set[int]] | None = None,
    trusts_all: bool = False,
) -> RebasedTransaction | RowConflict:
    """Follow rows; `deleted` has the rows of each deletion file by its number.

    What is kept of the versions must lead to the same result as all that they did.
    """
    operation = operation_of(staged)
    then = manifest(*(read or (fragment(0),)))
    kept = operation.rebase_footprints(footprint_of_ours(staged, then))
    for one in theirs:
        kept.add(*one)
    results = []
    for known in (theirs, kept.parts):
        assert operation.follow is not None
        facts = FollowFacts(
            latest_version=7,
            read=then,
            latest=table(manifest(*latest)).fragments.of,
            theirs=known,
            trusts_all=trusts_all,
            file_ids=count(70),
        )
        results.append(followed(operation.follow(staged, facts), deleted or {}))
    assert results[0] == results[1]
    return results[1]


def followed(steps: FollowingRebase, deleted: Mapping[int, set[int]]) -> RebasedTransaction | RowConflict:
    rows: list[BitMap] | None = None
    while True:
        try:
            wanted = next(steps) if rows is None else steps.send(rows)
        except StopIteration as end:
            result: RebasedTransaction | RowConflict = end.value
            return result
        assert wanted
        rows = [BitMap(deleted[one.fragment.deletion_file.id]) for one in wanted]


class TestDelete:
    def test_names_the_new_fragment_with_a_file_of_its_rows(self) -> None:
        new = fragment(9, deleted=4)
        rebased = follow(
            delete(fragment(0, deleted=2)), in_order(0), latest=(new,), deleted={2: {1, 5}, 4: {0, 2, 3, 4}}
        )
        assert isinstance(rebased, RebasedTransaction)
        (made,) = rebased.transaction.delete.updated_fragments
        assert (made.id, made.files, made.deletion_file.id) == (9, new.files, 70)
        assert rebased.transaction.read_version == 7
        assert BitMap.deserialize(rebased.files["_deletions/9-7-70.bin"]) == BitMap(range(6))
        assert rebased.followed == FollowedRows(rows=2, versions=(6,))
        assert str(rebased.followed) == "2 rows were followed to where version 6 moved them"

    def test_that_leaves_no_row_in_the_new_fragment_removes_it(self) -> None:
        rebased = follow(delete(removed=(0,)), in_order(0), latest=(fragment(9),))
        assert isinstance(rebased, RebasedTransaction)
        assert list(rebased.transaction.delete.deleted_fragment_ids) == [9]
        assert not rebased.transaction.delete.updated_fragments
        assert not rebased.files

    def test_of_rows_that_did_not_move_is_merged_as_ever(self) -> None:
        staged = delete(fragment(0, deleted=2), fragment(1, deleted=3), removed=(2,))
        read = (fragment(0), fragment(1), fragment(2))
        rebased = follow(
            staged,
            in_order(0),
            read=read,
            latest=(fragment(1, deleted=1), fragment(2), fragment(9)),
            deleted={1: {9}, 2: {1, 5}, 3: {1, 2, 3}},
        )
        assert isinstance(rebased, RebasedTransaction)
        assert [one.id for one in rebased.transaction.delete.updated_fragments] == [1, 9]
        assert list(rebased.transaction.delete.deleted_fragment_ids) == [2]
        assert {key.partition("-")[0] for key in rebased.files} == {"_deletions/1", "_deletions/9"}

    def test_a_conflict_in_what_did_not_move_counts(self) -> None:
        conflict = follow(
            delete(fragment(1, deleted=3), removed=(0,)),
            in_order(0),
            read=(fragment(0), fragment(1)),
            latest=(fragment(1, deleted=1), fragment(9)),
            deleted={1: {2}, 3: {1, 2, 3}},
        )
        assert isinstance(conflict, RowConflict)
        assert conflict.message == f"both modified the rows at addresses {(1 << 32) + 2}"

    def test_of_no_row_touches_nothing(self) -> None:
        same = fragment(0, deleted=2)
        rebased = follow(
            delete(fragment(0, deleted=3)), in_order(0), read=(same,), latest=(fragment(9),), deleted={2: {1}, 3: {1}}
        )
        assert isinstance(rebased, RebasedTransaction)
        assert not rebased.transaction.delete.updated_fragments
        assert rebased.followed == FollowedRows(rows=0, versions=(6,))

    def test_takes_no_deleted_row_back(self) -> None:
        conflict = follow(
            delete(fragment(0, deleted=2)),
            in_order(0),
            read=(fragment(0, deleted=1),),
            latest=(fragment(9),),
            deleted={1: {7}, 2: {1, 5}},
        )
        assert isinstance(conflict, RowConflict)
        assert "fragment 0 has rows again" in conflict.message

    def test_of_a_row_that_another_deleted_conflicts(self) -> None:
        gone = follow(delete(fragment(0, deleted=2)), in_order(0), latest=(), deleted={2: {1, 5}})
        assert isinstance(gone, RowConflict)
        assert "others deleted all rows of fragment 9" in gone.message
        dead = follow(
            delete(fragment(0, deleted=2)), in_order(0), latest=(fragment(9, deleted=1),), deleted={2: {1, 5}, 1: {5}}
        )
        assert isinstance(dead, RowConflict)
        assert dead.message == f"both modified the rows at addresses {(9 << 32) + 5}"
        group = Transaction.Rewrite.RewriteGroup(
            old_fragments=[fragment(0, deleted=1)], new_fragments=[fragment(9, rows=9)]
        )
        made = transaction(rewrite=Transaction.Rewrite(groups=[group]), transaction_properties=IN_ORDER_ROWS)
        dropped = follow(
            delete(fragment(0, deleted=2)),
            (6, footprint(made, staged=False)),
            latest=(fragment(9, rows=9),),
            deleted={2: {1, 5}, 1: {5}},
        )
        assert isinstance(dropped, RowConflict)
        assert dropped.message == "both modified the rows at addresses 5"

    def test_stops_where_rows_moved_on_in_an_order_that_is_not_known(self) -> None:
        silent = footprint(rewrite(9), staged=False)
        staged, deleted = delete(fragment(0, deleted=2)), {2: {1, 5}}
        conflict = follow(staged, in_order(0), (7, silent), latest=(), deleted=deleted)
        assert isinstance(conflict, RowConflict)
        assert (conflict.rule, conflict.version) == ("moved_rows", 7)
        assert "property committerd.rows" in conflict.message
        trusted = follow(
            staged,
            in_order(0, new=(fragment(8),)),
            (7, footprint(rewrite(8), staged=False)),
            latest=(fragment(9),),
            deleted=deleted,
            trusts_all=True,
        )
        assert isinstance(trusted, RebasedTransaction)
        assert trusted.followed == FollowedRows(rows=2, versions=(6, 7))

    def test_stops_where_columns_changed_since(self) -> None:
        changes = [
            (update(fragment(9, name="other")), True),
            (update(fragment(9, deleted=1)), False),
            (delete(removed=(9,)), False),
            (
                transaction(
                    data_replacement=Transaction.DataReplacement(
                        replacements=[Transaction.DataReplacementGroup(fragment_id=9)]
                    )
                ),
                True,
            ),
        ]
        for changed, stops in changes:
            result = follow(
                delete(fragment(0, deleted=2)),
                in_order(0),
                (7, footprint(changed, staged=False)),
                latest=(fragment(9),),
                deleted={2: {1, 5}},
            )
            assert isinstance(result, RowConflict) is stops
            if isinstance(result, RowConflict):
                assert "version 7 changed columns of fragment 9" in result.message

    def test_passes_over_versions_that_touch_other_fragments(self) -> None:
        two = rewrite(5, properties=IN_ORDER_ROWS)
        two.rewrite.groups.add(old_fragments=[fragment(0)], new_fragments=[fragment(7)])
        rebased = follow(
            delete(fragment(0, deleted=2)),
            (5, footprint(delete(removed=(4,)), staged=False)),
            (6, footprint(two, staged=False)),
            latest=(fragment(7),),
            deleted={2: {1, 5}},
        )
        assert isinstance(rebased, RebasedTransaction)
        assert [one.id for one in rebased.transaction.delete.updated_fragments] == [7]

    def test_of_too_many_rows_is_not_followed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(following, "FOLLOWED_ROWS_MAX", 9)
        conflict = follow(delete(removed=(0,)), in_order(0), latest=(fragment(9),))
        assert isinstance(conflict, RowConflict)
        assert (conflict.rule, conflict.message) == ("moved_rows", "10 rows would have to be followed; the limit is 9")

    def test_many_versions_are_counted(self) -> None:
        assert str(FollowedRows(rows=1, versions=(5,))) == "1 row was followed to where version 5 moved it"
        assert str(FollowedRows(rows=3, versions=(5, 7))) == "3 rows were followed through versions 5, 7"
        many = FollowedRows(rows=1, versions=tuple(range(1, 13)))
        assert str(many) == "1 row was followed through versions 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, and 2 more"
        assert str(FollowedRows(rows=1)) == "1 row that others deleted meanwhile is deleted in the new fragments, too"


def ordered_rewrite(*old: DataFragment, new: tuple[DataFragment, ...]) -> Transaction:
    group = Transaction.Rewrite.RewriteGroup(old_fragments=old, new_fragments=new)
    return transaction(rewrite=Transaction.Rewrite(groups=[group]), transaction_properties=IN_ORDER_ROWS)


class TestRewrite:
    def test_takes_over_what_others_deleted(self) -> None:
        staged = ordered_rewrite(fragment(0, deleted=2), fragment(1), new=(fragment(8, rows=5), fragment(9, rows=13)))
        rebased = follow(
            staged,
            read=(fragment(0, deleted=2), fragment(1)),
            latest=(fragment(0, deleted=3), fragment(1, deleted=1)),
            deleted={2: {0, 1}, 3: {0, 1, 9}, 1: {9}},
        )
        assert isinstance(rebased, RebasedTransaction)
        (group,) = rebased.transaction.rewrite.groups
        assert list(group.old_fragments) == list(staged.rewrite.groups[0].old_fragments)
        assert [one.deletion_file.num_deleted_rows for one in group.new_fragments] == [0, 2]
        assert BitMap.deserialize(rebased.files["_deletions/9-7-70.bin"]) == BitMap([2, 12])
        assert EMPTIED not in rebased.transaction.transaction_properties
        assert str(rebased.followed) == "2 rows that others deleted meanwhile are deleted in the new fragments, too"

    def test_notes_old_fragments_that_lost_all_rows(self) -> None:
        staged = ordered_rewrite(fragment(0), fragment(1), new=(fragment(9, rows=20),))
        rebased = follow(staged, read=(fragment(0), fragment(1)), latest=(fragment(1),))
        assert isinstance(rebased, RebasedTransaction)
        assert rebased.transaction.transaction_properties[EMPTIED] == "0"
        assert BitMap.deserialize(rebased.files["_deletions/9-7-70.bin"]) == BitMap(range(10))

    def test_must_name_the_fragments_as_they_were_read(self) -> None:
        check = rewriting.REWRITE.validate_as_read
        assert check is not None
        named = with_row_ids(fragment(0, deleted=2), [range(10)])
        staged = ordered_rewrite(named, new=(listed_ids(9, range(8)),))
        check(staged, manifest(named))
        wrong = [with_row_ids(fragment(0, deleted=2), [range(5, 15)]), fragment(5)]
        wrong += [fragment(0, deleted=1), fragment(0, rows=11, deleted=2), fragment(0, name="other", deleted=2)]
        for read in wrong:
            if not read.inline_row_ids:
                with_row_ids(read, [range(10)])
            with pytest.raises(InvalidRequest, match="describes fragment 0 differently from version 5"):
                check(staged, manifest(read))
        # Nobody follows rows through a group whose counts do not add up.
        check(ordered_rewrite(DataFragment(id=0), new=(fragment(9),)), manifest(named))

    def test_must_have_copied_every_row(self) -> None:
        old, new = with_row_ids(fragment(0), [range(10)]), with_row_ids(fragment(9, rows=9), [range(9)])
        conflict = follow(ordered_rewrite(old, new=(new,)), read=(old,), latest=())
        assert isinstance(conflict, RowConflict)
        assert "lack 1 row of fragment 0 that it should have copied" in conflict.message

    def test_does_not_follow_too_many_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(following, "FOLLOWED_ROWS_MAX", 9)
        conflict = follow(ordered_rewrite(fragment(0), new=(fragment(9),)), latest=())
        assert isinstance(conflict, RowConflict)
        assert conflict.rule == "late_deletions"


def listed_ids(number: int, ids: range) -> DataFragment:
    return with_row_ids(fragment(number, rows=len(ids)), [ids])


class TestCreateIndex:
    """Over a Rewrite it keeps what is left of its coverage."""

    def rebased(self, staged: Transaction, *theirs: Footprint) -> RebasedTransaction | RowConflict:
        operation = operation_of(staged)
        assert operation.rebase is not None
        kept = operation.rebase_footprints(footprint_of_ours(staged, None))
        for version, one in enumerate(theirs):
            kept.add(version, one)
        results = [
            operation.rebase(staged, RebaseFacts(latest_version=7, theirs=known, file_ids=count()))
            for known in (theirs, kept.footprints)
        ]
        assert results[0] == results[1]
        return results[1]

    def covered(self, rebased: RebasedTransaction | RowConflict) -> list[int]:
        assert isinstance(rebased, RebasedTransaction)
        (made,) = rebased.transaction.create_index.new_indices
        return list(BitMap.deserialize(made.fragment_bitmap))

    def test_of_addresses_keeps_its_list(self) -> None:
        rebased = self.rebased(create_index(index(1, fragments=[0, 1, 2])), footprint(rewrite(0, 1), staged=False))
        assert self.covered(rebased) == [0, 1, 2]
        assert isinstance(rebased, RebasedTransaction)
        assert "built on 3 fragments, of which 2 were rewritten" in rebased.note
        assert "it covers 1 fragment, and" in rebased.note

    def test_of_which_nothing_is_left_is_refused(self) -> None:
        conflict = self.rebased(
            create_index(index(1, fragments=[0, 1])),
            footprint(rewrite(0), staged=False),
            footprint(rewrite(1), staged=False),
        )
        assert isinstance(conflict, RowConflict)
        assert conflict.rule == "indexed_fragment_rewritten"

    def test_of_row_ids_covers_the_new_fragments(self) -> None:
        old = [with_row_ids(fragment(one), [range(10 * one, 10 * one + 10)]) for one in (0, 1, 2)]
        whole = ordered_rewrite(*old[:2], new=(listed_ids(9, range(20)),))
        part = ordered_rewrite(*old[1:], new=(listed_ids(9, range(10, 30)),))
        staged = create_index(index(1, fragments=[0, 1]))
        assert self.covered(self.rebased(staged, footprint(whole, staged=False))) == [9]
        on = ordered_rewrite(listed_ids(9, range(20)), new=(listed_ids(8, range(20)),))
        assert self.covered(self.rebased(staged, footprint(whole, staged=False), footprint(on, staged=False))) == [8]
        split = self.rebased(staged, footprint(part, staged=False))
        assert isinstance(split, RowConflict)
        assert "rewritten together with others" in split.message
        addresses = create_index(index(1, fragments=[0, 1]))
        addresses.create_index.new_indices[0].index_version = 1  # a B-tree of Lance 14
        assert self.covered(self.rebased(addresses, footprint(part, staged=False))) == [0]

    def test_that_readers_follow_is_left_alone(self) -> None:
        followed = replace(footprint(rewrite(0), staged=False), reuse_version=6)
        rebased = self.rebased(create_index(index(1, fragments=[0])), followed)
        assert self.covered(rebased) == [0]
        assert isinstance(rebased, RebasedTransaction)
        assert not rebased.note

    def test_elsewhere_has_nothing_to_say(self) -> None:
        for made in (index(1, fragments=[5]), index(1, fragments=None), reuse_index(1, ([0], [9]))):
            rebased = self.rebased(create_index(made), footprint(rewrite(0), staged=False))
            assert isinstance(rebased, RebasedTransaction)
            assert not rebased.note
