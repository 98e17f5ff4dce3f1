"""Deletes and Updates that share a version: judged by rows against those before them, recorded with all their rows."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count

import pytest
from pyroaring import BitMap

from committerd.errors import InvalidRequest
from committerd.lance.conflicts import key_filter as key_filters
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.conflicts.grid import Verdict, check
from committerd.lance.conflicts.key_filter import KeyUnion, key_filter
from committerd.lance.format.kind import Kind
from committerd.lance.rows import group as groups
from committerd.lance.rows.change import RowChange, TouchedFragment, require_rows_moved, row_change
from committerd.lance.rows.deletions import RowConflict, clash, rows_deleted, without_rows
from committerd.lance.rows.group import CombinedChange, RowGroup, either, rebased
from committerd.lance.transactions.transaction import named_fragments
from committerd.lance.versions.fragments import file_identity
from committerd_common.messages import DataFragment, Transaction
from committerd_common.own_properties import BLAKE2B_8, BY_KEY, CHANGES, KEY_HASH, MERGE
from tests.lance.operations import append, delete, update
from tests.lance.samples import fragment, generation, manifest, transaction, with_row_ids

READ = manifest(fragment(0), fragment(1, deleted=2), fragment(2))
FILES_OF_ANY = tuple(map(file_identity, fragment(0).files))


def change_of(staged: Transaction) -> RowChange:
    change = row_change(staged, READ)
    assert change is not None
    return change


def deleting(rows: Mapping[int, Sequence[int]], *, removed: Sequence[int] = (), kind: Kind = Kind.DELETE) -> RowChange:
    """A change whose rows are known."""
    touched = {
        id: TouchedFragment(read=fragment(id), staged=fragment(id, deleted=len(some) or 1), rows=BitMap(some))
        for id, some in rows.items()
    }
    kept = None if kind is Kind.DELETE else frozenset[int]()
    return RowChange(kind=kind, touched=touched, removed=removed, keeps_coverage=kept)


def updating(*hashes: int, preserved: Sequence[int] = (), fields: Sequence[int] = (0,)) -> RowChange:
    """A merge that inserts these keys."""
    made = exact(*hashes, fields=fields)
    return RowChange(kind=Kind.UPDATE, keys=key_filter(made), keeps_coverage=frozenset(preserved), moved=1)


def exact(*hashes: int, fields: Sequence[int] = (0,)) -> Transaction.KeyExistenceFilter:
    made = Transaction.KeyExistenceFilter(field_ids=fields)
    made.exact.key_hashes.extend(hashes)
    return made


def bloom(*bits: int, size: int = 32, items: int = 8192) -> Transaction.KeyExistenceFilter:
    made = Transaction.KeyExistenceFilter(field_ids=[0])
    made.bloom.bitmap = sum(1 << bit for bit in bits).to_bytes(size, "little")
    made.bloom.number_of_items = items
    return made


def conflict(one: RowChange, other: RowChange) -> bool:
    return one.rows_and_keys().conflicts_with(other.rows_and_keys())


def random_change(rng: random.Random) -> RowChange:
    """A Delete, or an Update that names its keys, says that it inserts no row, or neither."""
    made = deleting(
        {id: rng.sample(range(20), 4) for id in rng.sample(range(4), rng.randint(0, 2))},
        removed=rng.sample(range(4, 8), rng.randint(0, 1)),
        kind=rng.choice((Kind.DELETE, Kind.UPDATE, Kind.UPDATE)),
    )
    if made.kind is Kind.DELETE:
        return made
    return replace(
        made,
        keys=key_filter(exact(*rng.sample(range(20), 3))) if rng.random() < 0.6 else None,
        is_by_key=rng.random() < 0.5,
        changes=frozenset({rng.randrange(2)}) if rng.random() < 0.5 else None,
    )


def footprint_of(change: RowChange, *, ours: bool) -> Footprint:
    """The footprint of the transaction that makes this change."""
    files = dict.fromkeys(change.touched, FILES_OF_ANY)
    read = dict.fromkeys(change.fragments, FILES_OF_ANY)
    return Footprint(
        kind=change.kind,
        fragments=frozenset(change.fragments),
        removed=frozenset(change.removed),
        files=files,
        files_read=read if ours else None,
        key_filter=change.keys,
        is_by_key=change.is_by_key,
        changed_fields=change.changes,
    )


def group_of(*members: RowChange, keeps_apart: bool = False) -> RowGroup:
    group = RowGroup(keeps_apart=keeps_apart)
    for one in members:
        assert group.takes(one)
        assert group.conflict(one) is None
        group.add(one)
    return group


class TestChange:
    def test_is_what_a_delete_does(self) -> None:
        change = change_of(delete(fragment(1, deleted=3), removed=(2,)))
        assert (change.kind, list(change.touched), list(change.removed)) == (Kind.DELETE, [1], [2])
        assert change.touched[1].read == READ.fragments[1]
        assert list(change.fragments) == [1, 2]
        assert (change.keys, change.keeps_coverage, change.moved) == (None, None, 0)

    def test_is_what_an_update_does(self) -> None:
        staged = update(
            fragment(0, deleted=1),
            new_fragments=[fragment(0, name="new")],
            inserted_rows=exact(7),
            fields_for_preserving_frag_bitmap=[2, 1],
        )
        staged.transaction_properties[KEY_HASH] = BLAKE2B_8
        change = change_of(staged)
        assert (change.kind, change.keeps_coverage, change.moved) == (Kind.UPDATE, frozenset({1, 2}), 1)
        assert change.keys == key_filter(exact(7))
        assert (change.is_by_key, change.changes) == (False, None)
        staged.transaction_properties[MERGE] = BY_KEY
        assert change_of(staged).is_by_key
        plain = update(fragment(0, deleted=1))
        assert change_of(plain).keys is None
        plain.transaction_properties[CHANGES] = "1,2"
        assert change_of(plain).changes == frozenset({1, 2})

    def test_with_rows_keeps_the_rest(self) -> None:
        change = change_of(delete(fragment(0, deleted=1), fragment(1, deleted=3)))
        known = change.with_rows({0: BitMap([5]), 1: BitMap()})
        assert (known.touched[0].rows, known.touched[1].rows) == (BitMap([5]), BitMap())
        assert known.touched[0].read == change.touched[0].read
        assert (change.bytes, known.bytes) == (0, 2)

    def test_conflicts_with_what_the_grid_or_a_group_would_not_let_it_follow(self) -> None:
        rng, found = random.Random(1), list[bool]()
        for _ in range(3000):
            one, other = random_change(rng), random_change(rng)
            found.append(conflict(one, other))
            verdict = check(footprint_of(one, ours=True), 1, footprint_of(other, ours=False)).verdict
            same_row = any(
                some.rows & other.touched[id].rows for id, some in one.touched.items() if id in other.touched
            )
            assert found[-1] == (verdict >= Verdict.RETRYABLE or bool(same_row))
            group = group_of(other)
            if group.takes(one):
                assert found[-1] == (group.conflict(one) is not None)
        assert 600 < sum(found) < 2400

    def test_conflicts_with_what_removes_the_same_fragment(self) -> None:
        assert conflict(deleting({}, removed=[1]), deleting({1: [3]}))
        assert conflict(deleting({1: [3]}), deleting({}, removed=[1]))
        assert conflict(deleting({}, removed=[1]), deleting({}, removed=[1]))
        assert not conflict(updating(7), deleting({1: [3]}))
        assert not conflict(deleting({}, removed=[2]), deleting({1: [3]}))

    def test_conflicts_with_what_may_have_brought_one_of_its_keys(self) -> None:
        by_key = replace(updating(7), is_by_key=True)
        plain = deleting({1: [3]}, kind=Kind.UPDATE)
        assert conflict(by_key, plain)
        assert not conflict(plain, by_key)
        assert not conflict(by_key, replace(plain, changes=frozenset({1})))
        assert conflict(by_key, replace(plain, changes=frozenset({0}))), "it changes the key column"
        assert conflict(updating(7), replace(plain, changes=frozenset({1}))), "it may depend on rows with other keys"

    def test_its_rows_and_keys_count_all_their_memory(self) -> None:
        assert deleting({1: [3, 4], 2: [5]}).rows_and_keys().bytes > deleting({1: [3, 4]}).rows_and_keys().bytes > 100
        assert deleting({}, removed=range(1000)).rows_and_keys().bytes > 100_000
        bits = replace(updating(), keys=key_filter(bloom(5, size=4096)))
        assert bits.rows_and_keys().bytes >= 4096
        assert updating(*range(1000)).rows_and_keys().bytes > 30_000

    @pytest.mark.parametrize(
        "staged",
        [
            append(),
            transaction(tag="t", delete=Transaction.Delete()),
            update(update_mode=Transaction.REWRITE_COLUMNS),
            update(fields_modified=[1]),
            update(merged_generations=[generation(1, 1)]),
            update(updated_fragment_offsets={0: Transaction.UInt32List(values=[1])}),
            update(updated_fragment_offset_bitmaps={0: b"x"}),
            delete(fragment(9, deleted=1)),
            delete(removed=(9,)),
            delete(fragment(0, deleted=1), fragment(0, deleted=2)),
            delete(fragment(0, deleted=1), removed=(0,)),
            delete(fragment(0, name="other", deleted=1)),
            delete(fragment(0, rows=11, deleted=1)),
        ],
    )
    def test_is_none_for_all_that_does_more(self, staged: Transaction) -> None:
        assert row_change(staged, READ) is None

    def test_needs_the_read_version(self) -> None:
        assert row_change(delete(fragment(0, deleted=1)), None) is None

    def test_does_not_ask_for_the_size_of_a_file(self) -> None:
        staged = fragment(0, deleted=1)
        staged.files[0].file_size_bytes = 0
        assert row_change(delete(staged), READ) is not None


class TestMovedRows:
    READ = manifest(fragment(0), fragment(1, deleted=2), stable=True)

    def test_are_rows_that_the_update_deletes(self) -> None:
        new = with_row_ids(fragment(0, rows=1, name="new"), [range(3, 4)])
        require_rows_moved(update(fragment(0, deleted=1), new_fragments=[new]), self.READ)
        require_rows_moved(update(new_fragments=[new], removed_fragment_ids=[0]), self.READ)
        require_rows_moved(update(fragment(0, deleted=1)), self.READ)
        with pytest.raises(InvalidRequest, match="deletes 0 rows"):
            require_rows_moved(update(fragment(1, deleted=2), new_fragments=[new]), self.READ)
        with pytest.raises(InvalidRequest, match="in none of the fragments that lose rows"):
            require_rows_moved(update(fragment(1, deleted=3), new_fragments=[new]), self.READ)


class TestDeletedRows:
    def test_are_those_beyond_the_read_version(self) -> None:
        assert rows_deleted(3, read=BitMap([1]), staged=BitMap([1, 2])) == BitMap([2])
        again = rows_deleted(3, read=BitMap([1]), staged=BitMap([2]))
        assert isinstance(again, RowConflict)
        assert "fragment 3 has rows again" in again.message

    def test_clash_by_address(self) -> None:
        assert clash({0: BitMap()}) is None
        assert clash({0: BitMap([3]), 1: BitMap(range(12))}) == RowConflict(
            message=f"both modified the rows at addresses 3, {', '.join(str((1 << 32) + row) for row in range(9))}, "
            "and 3 more"
        )

    def test_that_are_all_remove_the_fragment(self) -> None:
        left = without_rows(fragment(0, rows=3), BitMap([0, 2]), BitMap([1]), latest_version=4, file_ids=count())
        assert left.deletion_file is None

    def test_need_a_file_only_where_they_grow(self) -> None:
        one = fragment(0, deleted=2)
        same = without_rows(one, BitMap([0, 2]), BitMap([2]), latest_version=4, file_ids=count())
        assert (same.deletion_file, same.key) == (one.deletion_file, "")
        grown = without_rows(one, BitMap([0, 2]), BitMap([1]), latest_version=4, file_ids=count(9))
        assert grown.key == "_deletions/0-4-9.bin"
        assert BitMap.deserialize(grown.body) == BitMap([0, 1, 2])


class TestKeys:
    def test_of_exact_filters_stay_exact(self) -> None:
        union = KeyUnion(key_filter(exact(1)))
        for made in (exact(1), exact(5, 3)):
            assert union.takes(key_filter(made))
            union.add(key_filter(made))
        assert union.may_have_one_of(key_filter(exact(5)))
        assert not union.may_have_one_of(key_filter(exact(4)))
        assert union.message() == exact(1, 3, 5)

    def test_of_bloom_filters_are_one_bloom_filter(self) -> None:
        union = KeyUnion(key_filter(bloom(1)))
        union.add(key_filter(bloom(1)))
        union.add(key_filter(bloom(200)))
        assert union.may_have_one_of(key_filter(bloom(200)))
        assert not union.may_have_one_of(key_filter(bloom(201)))
        assert key_filter(union.message()) == replace(key_filter(bloom(1, 200)))
        assert union.message().bloom.num_bits == 256

    @pytest.mark.parametrize(
        ("first", "other"),
        [
            (exact(1), exact(2, fields=[1])),
            (exact(1), bloom(2)),
            (bloom(1), exact(2)),
            (bloom(1), bloom(2, size=64)),
            (bloom(1), bloom(2, items=5)),
        ],
    )
    def test_of_other_filters_stay_apart(
        self, first: Transaction.KeyExistenceFilter, other: Transaction.KeyExistenceFilter
    ) -> None:
        assert not KeyUnion(key_filter(first)).takes(key_filter(other))

    def test_are_limited_but_for_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        few, more = key_filter(exact(2)), key_filter(exact(2, 3, 4))
        monkeypatch.setattr(key_filters, "KEYS_MAX", 2)
        union = KeyUnion(key_filter(exact()))
        assert union.takes(more)
        union.add(key_filter(exact(1)))
        assert union.takes(few)
        assert not union.takes(more)

    def test_of_very_many_count_as_any(self) -> None:
        many = key_filter(exact(*range(key_filters.KEYS_MAX + 1)))
        assert many.exact is None
        assert len(many.bloom) < 100_000
        for other in (exact(-1 % 2**64), bloom(1), bloom(7, size=32768), exact(*range(200_000, 400_000))):
            assert many.may_share_a_key(key_filter(other))
            assert key_filter(other).may_share_a_key(many)
        assert key_filter(exact(*range(key_filters.KEYS_MAX))).exact is not None


class TestTakes:
    def test_deletes_with_any_update(self) -> None:
        group = group_of(deleting({0: [1]}), updating(1), deleting({1: [1]}))
        assert group.takes(updating(2))

    def test_only_updates_that_record_alike(self) -> None:
        group = group_of(updating(1, preserved=[1]))
        assert group.takes(updating(2, preserved=[1]))
        assert not group.takes(updating(2, preserved=[2]))
        assert not group.takes(updating(2, preserved=[1], fields=[4]))
        assert not group.takes(replace(updating(preserved=[1]), keys=None))
        assert not group_of(deleting({}, kind=Kind.UPDATE)).takes(updating(1))
        assert group_of(deleting({}, kind=Kind.UPDATE)).takes(deleting({1: [2]}, kind=Kind.UPDATE))

    def test_one_operation_on_a_table_with_a_mem_wal_index(self) -> None:
        group = group_of(deleting({0: [1]}), deleting({0: [2]}), keeps_apart=True)
        assert not group.takes(updating(1))
        assert not group_of(updating(1), keeps_apart=True).takes(deleting({0: [1]}))


class TestConflict:
    def test_of_the_same_key(self) -> None:
        found = group_of(updating(1, 2)).conflict(updating(2))
        assert found is not None
        assert (found.kind, found.rule) == (Kind.UPDATE, "same_row_or_key")

    def test_of_a_fragment_that_one_of_them_removes(self) -> None:
        found = group_of(deleting({}, removed=[0], kind=Kind.UPDATE)).conflict(deleting({0: [1]}))
        assert found is not None
        assert (found.kind, found.rule, found.message) == (
            Kind.UPDATE,
            "same_row",
            "the other transaction removed fragment 0",
        )
        found = group_of(deleting({}, removed=[0])).conflict(deleting({}, removed=[0]))
        assert found is not None
        assert "removes fragment 0" in found.message
        found = group_of(deleting({0: [1]})).conflict(deleting({}, removed=[1, 0]))
        assert found is not None
        assert "removes fragment 0" in found.message

    def test_of_the_same_row(self) -> None:
        group = group_of(deleting({0: [1], 1: [1]}), deleting({0: [2]}, kind=Kind.UPDATE))
        found = group.conflict(deleting({0: [2, 3], 1: [2]}))
        assert found is not None
        assert (found.kind, found.message) == (Kind.UPDATE, "both modified the rows at addresses 2")
        assert group.conflict(deleting({0: [3], 2: [1]}, removed=[4])) is None


class TestRecorded:
    def test_takes_the_staged_file_of_a_member_that_is_alone_in_its_fragment(self) -> None:
        staged = fragment(0, deleted=1)
        group = group_of(change_of(delete(staged, removed=(2,))))
        assert group.to_merge(READ) == []
        recorded = group.recorded(READ, {}, latest_version=5, file_ids=count())
        assert (list(recorded.updated), list(recorded.removed), recorded.files) == ([staged], [2], {})
        assert group.fragments == [0, 2]

    @pytest.mark.parametrize("make", [delete, update])
    def test_takes_nothing_but_the_deletion_file_of_a_staged_fragment(self, make: Callable[..., Transaction]) -> None:
        staged = fragment(1, deleted=3)
        staged.files[0].file_size_bytes = 7
        recorded = group_of(change_of(make(staged))).recorded(READ, {}, latest_version=5, file_ids=count())
        assert list(recorded.updated) == [fragment(1, deleted=3)]

    def test_merges_with_rows_that_are_gone_since(self) -> None:
        group = group_of(change_of(delete(fragment(1, deleted=3))).with_rows({1: BitMap([5])}))
        latest = manifest(fragment(0), fragment(1, deleted=4))
        assert [one.id for one in group.to_merge(latest)] == [1]
        recorded = group.recorded(latest, {1: BitMap([0, 1, 2, 3])}, latest_version=7, file_ids=count(50))
        (changed,) = recorded.updated
        assert (changed.deletion_file.num_deleted_rows, changed.deletion_file.read_version) == (5, 7)
        assert BitMap.deserialize(recorded.files["_deletions/1-7-50.bin"]) == BitMap([0, 1, 2, 3, 5])

    def test_removes_a_fragment_that_members_empty_together(self) -> None:
        group = group_of(deleting({0: range(5)}), deleting({0: range(5, 10), 2: [1]}, removed=[4]))
        recorded = group.recorded(READ, {0: BitMap()}, latest_version=5, file_ids=count())
        assert ([one.id for one in recorded.updated], list(recorded.removed)) == ([2], [0, 4])

    def test_leaves_a_fragment_as_it_is_without_rows_to_delete(self) -> None:
        group = group_of(deleting({0: []}), deleting({0: []}))
        recorded = group.recorded(READ, {0: BitMap()}, latest_version=5, file_ids=count())
        assert (list(recorded.updated), recorded.files) == ([READ.fragments[0]], {})

    def test_takes_rows_that_were_followed_to_another_fragment(self) -> None:
        followed = RowChange(kind=Kind.DELETE, touched={2: TouchedFragment(rows=BitMap([3]))})
        group = group_of(followed)
        assert [one.id for one in group.to_merge(READ)] == [2]
        recorded = group.recorded(READ, {2: BitMap()}, latest_version=5, file_ids=count())
        assert [one.deletion_file.num_deleted_rows for one in recorded.updated] == [1]

    def test_names_a_fragment_that_is_gone_for_the_build_to_refuse(self) -> None:
        latest = manifest(fragment(1))
        for group in (
            group_of(change_of(delete(fragment(0, deleted=1)))),
            group_of(RowChange(kind=Kind.DELETE, touched={0: TouchedFragment(rows=BitMap([3]))})),
        ):
            assert group.to_merge(latest) == []
            recorded = group.recorded(latest, {}, latest_version=5, file_ids=count())
            assert [one.id for one in recorded.updated] == [0]
        group = group_of(deleting({0: [1]}), deleting({0: [2]}))
        assert [one.id for one in group.recorded(latest, {}, latest_version=5, file_ids=count()).updated] == [0]


class TestTransaction:
    def test_of_deletes_is_a_delete(self) -> None:
        one, other = delete(fragment(0, deleted=1)), delete(fragment(2, deleted=1), removed=(1,))
        one.delete.predicate, other.delete.predicate, other.read_version = "a < 1", "b", 3
        group = group_of(change_of(one), change_of(other))
        recorded = group.recorded(READ, {}, latest_version=5, file_ids=count())
        made = group.transaction([one, other], recorded)
        assert (made.read_version, made.uuid) == (3, "")
        assert [one.id for one in made.delete.updated_fragments] == [0, 2]
        assert list(made.delete.deleted_fragment_ids) == [1]
        assert made.delete.predicate == "(a < 1) OR (b)"
        assert group.moves == []

    def test_with_an_update_is_an_update(self) -> None:
        removing = delete(removed=(1,))
        merges = [
            update(
                fragment(at, deleted=1),
                new_fragments=[fragment(0, name=f"n{at}")],
                inserted_rows=exact(at),
                fields_for_preserving_frag_bitmap=[2, 1],
            )
            for at in (0, 2)
        ]
        for one in merges:
            one.transaction_properties[KEY_HASH] = BLAKE2B_8
        staged = [merges[0], removing, merges[1]]
        group = group_of(*map(change_of, staged))
        whole = group.transaction(staged, group.recorded(READ, {}, latest_version=5, file_ids=count()))
        assert dict(whole.transaction_properties) == {KEY_HASH: BLAKE2B_8}
        made = whole.update
        assert [one.id for one in made.updated_fragments] == [0, 2]
        assert list(made.removed_fragment_ids) == [1]
        assert [one.files[0].path for one in made.new_fragments] == ["n0.lance", "n2.lance"]
        assert list(made.fields_for_preserving_frag_bitmap) == [1, 2]
        assert made.inserted_rows == exact(0, 2)
        assert group.moves == [(1, frozenset({0})), (1, frozenset({2}))]

    def test_members_whose_keys_are_hashed_in_another_way_go_with_nobody(self) -> None:
        strange, known = (
            update(fragment(at, deleted=1), new_fragments=[fragment(0, name="new")], inserted_rows=exact(at))
            for at in (0, 2)
        )
        known.transaction_properties[KEY_HASH] = BLAKE2B_8
        assert not group_of(change_of(strange)).takes(change_of(known))
        assert group_of(change_of(strange)).conflict(change_of(strange)) is not None
        made = group_of(change_of(strange)).transaction(
            [strange], CombinedChange(updated=[], removed=[], files={}, rows={})
        )
        assert not made.transaction_properties

    def test_of_100_000_members_has_one_file_for_each_fragment(self) -> None:
        """And the keys of all. Some of them empty the last fragment together."""
        many, rows = 100_000, 30_000
        group = RowGroup()

        def member(number: int, key: int) -> RowChange:
            at, row = divmod(number, rows)
            touched = {at: TouchedFragment(read=fragment(at), staged=fragment(at, deleted=1), rows=BitMap([row]))}
            return replace(updating(key), touched=touched)

        for number in range(many):
            change = member(number, number)
            assert group.takes(change)
            assert group.conflict(change) is None
            group.add(change)
        assert group.conflict(updating(many - 1)) is not None
        assert group.conflict(member(many - 1, many + 1)) is not None
        assert not group.takes(updating(many + 1))  # there is no room for one more key
        latest = manifest(*(fragment(at, rows=rows + 1) for at in range(3)), fragment(3, rows=many - 3 * rows))
        started = time.process_time()
        recorded = group.recorded(latest, dict.fromkeys(range(4), BitMap()), latest_version=5, file_ids=count())
        made = group.transaction([update() for _ in range(many)], recorded).update
        assert time.process_time() - started < 5
        assert [one.deletion_file.num_deleted_rows for one in recorded.updated] == [rows] * 3
        assert (list(recorded.removed), len(recorded.files)) == ([3], 3)
        assert len(made.inserted_rows.exact.key_hashes) == many
        assert len(group.moves) == many

    def test_has_no_keys_without_those_of_members(self) -> None:
        staged = update(fragment(0, deleted=1))
        group = group_of(change_of(staged))
        made = group.transaction([staged], group.recorded(READ, {}, latest_version=5, file_ids=count()))
        assert not made.update.HasField("inserted_rows")

    def test_says_that_it_inserts_no_row_if_all_members_do(self) -> None:
        staged = [update(fragment(at, deleted=1)) for at in (0, 2)]
        for one, changes in zip(staged, ("1,3", "2,3"), strict=True):
            one.transaction_properties[CHANGES] = changes
        silent = update(fragment(1, deleted=3))
        for members, expected in (
            ([*staged, delete(removed=(1,))], {CHANGES: "1,2,3"}),
            ([*staged, silent], {}),
            ([delete(removed=(1,)), delete(fragment(0, deleted=1))], {}),
        ):
            group = group_of(*map(change_of, members))
            made = group.transaction(members, group.recorded(READ, {}, latest_version=5, file_ids=count()))
            assert dict(made.transaction_properties) == expected

    def test_of_one_member_is_its_own(self) -> None:
        for staged in (delete(fragment(0, deleted=1), removed=(1,)), update(fragment(0, deleted=1))):
            group = group_of(change_of(staged))
            recorded = group.recorded(READ, {}, latest_version=9, file_ids=count())
            expected = Transaction()
            expected.CopyFrom(staged)
            expected.read_version = 9
            assert rebased(staged, recorded, latest_version=9) == expected

    def test_joins_predicates_up_to_a_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert either([]) == ""
        assert either(["a", "", "a"]) == "a"
        monkeypatch.setattr(groups, "PREDICATE_CHARS_MAX", 14)
        assert either(["a", "b", "c", "d"]) == "(a) OR (b) OR (2 more)"


@pytest.mark.parametrize("seed", range(60))
def test_rows_are_those_of_serial_execution(seed: int) -> None:
    """Random members on fragments that others have changed since: committed or refused as if each were a version."""
    rng = random.Random(seed)
    sizes = {id: rng.randint(1, 6) for id in range(3)}
    then = {id: BitMap(rng.sample(range(rows), rng.randint(0, rows - 1))) for id, rows in sizes.items()}
    live = {id: BitMap(range(rows)) - then[id] for id, rows in sizes.items()}
    late = {id: BitMap(rng.sample(list(rows), rng.randint(0, max(len(rows) - 1, 0)))) for id, rows in live.items()}
    read = manifest(*(made_with(id, sizes[id], then[id], "then") for id in sizes))
    latest = manifest(*(made_with(id, sizes[id], then[id] | late[id], "now" if late[id] else "then") for id in sizes))
    serial = {id: then[id] | late[id] for id in sizes}
    group, expected, got, ours_of = RowGroup(), list[bool](), list[bool](), dict[int, BitMap]()
    for number in range(rng.randint(2, 6)):
        some = {id: BitMap(rng.sample(list(rows), rng.randint(1, min(2, len(rows))))) for id, rows in live.items()}
        mine = {id: rows for id, rows in some.items() if rng.random() < 0.6}
        gone = [id for id, rows in mine.items() if rows == live[id]]
        staged = [
            made_with(id, sizes[id], then[id] | rows, f"s{number}") for id, rows in mine.items() if id not in gone
        ]
        change = row_change(delete(*staged, removed=tuple(gone)), read)
        assert change is not None
        # The same as a version of its own, after those that were committed.
        fits = not any(rows & serial[id] for id, rows in mine.items())
        expected.append(fits)
        if fits:
            serial |= {id: serial[id] | rows for id, rows in mine.items()}
        # In the group: against those since its read version by the rules, then against those before it.
        ours = change.with_rows({id: rows for id, rows in mine.items() if id in change.touched})
        passes = not any(late[id] and (id in gone or mine[id] & late[id]) for id in mine)
        passes = passes and group.takes(ours) and group.conflict(ours) is None
        got.append(passes)
        if passes:
            group.add(ours)
            ours_of |= mine
    assert got == expected
    merges = group.to_merge(latest)
    deleted = {one.id: then[one.id] | late[one.id] for one in merges}
    recorded = group.recorded(latest, deleted, latest_version=8, file_ids=count(100))
    after = {id: then[id] | late[id] for id in sizes}
    for one in recorded.updated:
        if one.id in deleted:
            after[one.id] = BitMap.deserialize(recorded.files[f"_deletions/{one.id}-8-{one.deletion_file.id}.bin"])
        else:
            after[one.id] = after[one.id] | ours_of[one.id]
    for id in recorded.removed:
        after[id] = BitMap(range(sizes[id]))
    assert after == serial


def made_with(id: int, rows: int, deleted: BitMap, name: str) -> DataFragment:
    made = fragment(id, rows=rows, deleted=len(deleted))
    if deleted:
        made.deletion_file.id = hash(name) % 2**32
    return made


def test_a_transaction_names_the_fragments_that_it_changes_or_removes() -> None:
    assert list(named_fragments(delete(fragment(1, deleted=3), removed=(2,)))) == [1, 2]
