"""Rebasing ours over theirs: deletions are merged, indices updated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from committerd.lance.format.fragment_reuse import Content, ExternalContent, reuse_content
from committerd.lance.operations.create_index import REUSE_INLINE_BYTES_MAX, rebase_indices, rebase_reuse
from committerd.lance.operations.rebase import (
    DeletionMerge,
    Deletions,
    RebasedTransaction,
    RebaseFacts,
    ReuseContents,
    RowConflict,
)
from committerd.lance.transactions.transaction import footprint, operation_of
from committerd_common.index_details import unpack_details
from committerd_common.messages import DeletionFile, Manifest, MemWalIndexDetails, Transaction
from tests.lance import samples
from tests.lance.operations import create_index, delete, merged, replacement, update
from tests.lance.samples import fragment, generation, index, manifest

LATEST = 7


def rows_of(*rows: int) -> BitMap:
    return BitMap(rows)


def plan_deletions(transaction: Transaction, read: Manifest | None, latest: Manifest) -> Sequence[DeletionMerge]:
    return operation_of(transaction).deletions_to_merge(transaction, read, latest)


def merge_deletions(
    transaction: Transaction, merges: Sequence[tuple[DeletionMerge, Deletions]], first_file_id: int = 0
) -> RebasedTransaction | RowConflict:
    rebase = operation_of(transaction).rebase
    assert rebase is not None
    facts = RebaseFacts(latest_version=LATEST, deletions=merges, file_ids=count(first_file_id))
    return rebase(transaction, facts)


def merge(
    transaction: Transaction, read: BitMap, ours: BitMap, latest: BitMap, *, rows: int = 100
) -> RebasedTransaction | RowConflict:
    """Rebase a transaction that changes fragment 0, in its three states."""
    states = {"read": read, "ours": ours, "latest": latest}
    made = {name: fragment(0, rows=rows, deleted=len(deleted)) for name, deleted in states.items()}
    made["latest"].deletion_file.id = 4711
    return merge_deletions(transaction, [(DeletionMerge(**made), Deletions(**states))], first_file_id=50)


def deleting(rows: BitMap) -> Transaction:
    return delete(fragment(0, rows=100, deleted=len(rows)))


class TestPlan:
    def test_names_fragments_whose_deletions_changed(self) -> None:
        read = manifest(fragment(0), fragment(1, deleted=2), fragment(2))
        latest = manifest(fragment(0, deleted=3), fragment(1, deleted=2), fragment(2, deleted=1))
        staged = delete(fragment(0, deleted=1), fragment(1, deleted=4))
        plan = plan_deletions(staged, read, latest)
        assert [(one.read.id, one.ours.id, one.latest.deletion_file.num_deleted_rows) for one in plan] == [(0, 0, 3)]
        updated = update(fragment(2, deleted=4))
        assert [one.ours.id for one in plan_deletions(updated, read, latest)] == [2]

    def test_needs_the_read_version(self) -> None:
        assert not plan_deletions(delete(fragment(0, deleted=1)), None, manifest(fragment(0, deleted=2)))

    def test_passes_over_what_is_gone(self) -> None:
        assert not plan_deletions(delete(fragment(0, deleted=1)), manifest(fragment(0)), manifest(fragment(1)))

    def test_is_for_deletions_only(self) -> None:
        assert not plan_deletions(create_index(index(1)), manifest(fragment(0)), manifest(fragment(0, deleted=2)))


class TestDeletions:
    def test_of_both_sides_are_merged(self) -> None:
        theirs, ours = BitMap(range(10)), BitMap(range(20, 30))
        rebased = merge(deleting(ours), rows_of(), ours, theirs)
        assert isinstance(rebased, RebasedTransaction)
        (made,) = rebased.transaction.delete.updated_fragments
        assert made.deletion_file == DeletionFile(
            file_type=DeletionFile.BITMAP, read_version=LATEST, id=50, num_deleted_rows=20
        )
        assert list(rebased.files) == [f"_deletions/0-{LATEST}-50.bin"]
        assert BitMap.deserialize(rebased.files[f"_deletions/0-{LATEST}-50.bin"]) == theirs | ours
        assert rebased.transaction.read_version == LATEST
        assert rebased.transaction.uuid == deleting(ours).uuid

    def test_that_leave_no_row_remove_the_fragment(self) -> None:
        theirs, ours = BitMap(range(25)), BitMap(range(25, 50))
        rebased = merge(deleting(ours), rows_of(), ours, theirs, rows=50)
        assert isinstance(rebased, RebasedTransaction)
        assert not rebased.files
        assert list(rebased.transaction.delete.deleted_fragment_ids) == [0]
        assert [one.id for one in rebased.transaction.delete.updated_fragments] == [0]
        updated = merge(update(fragment(0)), rows_of(), ours, theirs, rows=50)
        assert isinstance(updated, RebasedTransaction)
        assert list(updated.transaction.update.removed_fragment_ids) == [0]

    def test_of_the_same_row_conflict(self) -> None:
        conflict = merge(deleting(rows_of(0)), rows_of(), rows_of(0), rows_of(0))
        assert isinstance(conflict, RowConflict)
        assert conflict.message == "both modified the rows at addresses 0"

    def test_tell_five_addresses(self) -> None:
        same = BitMap(range(12))
        high = [
            (
                DeletionMerge(read=fragment(1), ours=fragment(1, deleted=12), latest=fragment(1, deleted=12)),
                Deletions(read=BitMap(), ours=same, latest=same),
            )
        ]
        conflict = merge_deletions(delete(fragment(1, deleted=12)), high)
        assert isinstance(conflict, RowConflict)
        first = 1 << 32
        told = ", ".join(str(first + row) for row in range(10))
        assert conflict.message == f"both modified the rows at addresses {told}, and 2 more"

    def test_that_were_there_when_we_read_are_not_ours(self) -> None:
        rebased = merge(deleting(rows_of(1, 2)), rows_of(1), rows_of(1, 2), rows_of(1, 3))
        assert isinstance(rebased, RebasedTransaction)
        (body,) = rebased.files.values()
        assert BitMap.deserialize(body) == rows_of(1, 2, 3)

    def test_that_are_taken_back_can_not_be_told_apart(self) -> None:
        conflict = merge(deleting(rows_of(2)), rows_of(1), rows_of(2), rows_of(1, 3))
        assert isinstance(conflict, RowConflict)
        assert "fragment 0" in conflict.message

    def test_of_theirs_alone_need_no_file(self) -> None:
        rebased = merge(deleting(rows_of(1)), rows_of(1), rows_of(1), rows_of(1, 3))
        assert isinstance(rebased, RebasedTransaction)
        assert not rebased.files
        assert rebased.transaction.delete.updated_fragments[0].deletion_file.id == 4711

    def test_in_other_fragments_change_only_the_read_version(self) -> None:
        staged = deleting(rows_of(1))
        rebased = merge_deletions(staged, [])
        assert isinstance(rebased, RebasedTransaction)
        rebased.transaction.read_version = staged.read_version
        assert rebased.transaction == staged

    @given(*(st.sets(st.integers(0, 19)) for _ in range(3)))
    def test_lose_no_row_and_delete_none_twice(self, read: set[int], ours: set[int], latest: set[int]) -> None:
        before, mine, theirs = BitMap(read), BitMap(read | ours), BitMap(read | latest)
        rebased = merge(deleting(mine), before, mine, theirs, rows=20)
        clash = (ours - read) & (latest - read)
        assert isinstance(rebased, RowConflict) == bool(clash)
        if isinstance(rebased, RebasedTransaction):
            wanted = read | ours | latest
            (made,) = rebased.transaction.delete.updated_fragments
            if 0 in rebased.transaction.delete.deleted_fragment_ids:
                assert len(wanted) == 20
            elif rebased.files:
                (body,) = rebased.files.values()
                assert set(BitMap.deserialize(body)) == wanted
                assert made.deletion_file.num_deleted_rows == len(wanted)
            else:
                assert wanted == read | latest


class TestIndices:
    def test_do_not_cover_what_was_rewritten_since(self) -> None:
        staged = create_index(index(1, fields=[1], fragments=[0, 1]), index(2, fields=[0], fragments=[0]))
        theirs = footprint(
            update(fragment(0, name="x"), fields_modified=[1], update_mode=Transaction.REWRITE_COLUMNS), staged=False
        )
        rebased = rebase_indices(staged, [theirs], ())
        covers = [list(BitMap.deserialize(one.fragment_bitmap)) for one in rebased.create_index.new_indices]
        assert covers == [[1], [0]]
        assert staged.create_index.new_indices[0].fragment_bitmap == samples.bitmap([0, 1])

    def test_on_a_list_do_not_cover_elements_that_were_replaced_since(self) -> None:
        schema = [samples.column(0), samples.column(1), samples.column(2, parent=1)]
        staged = create_index(index(1, fields=[1], fragments=[0, 1]), index(2, fields=[0], fragments=[0, 1]))
        rebased = rebase_indices(staged, [footprint(replacement(0, 2), staged=False)], schema)
        covers = [list(BitMap.deserialize(one.fragment_bitmap)) for one in rebased.create_index.new_indices]
        assert covers == [[1], [0, 1]]

    def test_take_in_what_was_merged_since(self) -> None:
        staged = create_index(samples.mem_wal_index(1, generation(1, 5)))
        theirs = [footprint(merged((1, 7), (2, 3)), staged=False), footprint(merged((1, 6)), staged=False)]
        (made,) = rebase_indices(staged, theirs, ()).create_index.new_indices
        found = unpack_details(made, MemWalIndexDetails).merged_generations
        assert [(one.region_id.uuid, one.generation) for one in found] == [
            (samples.uuid_of(1).uuid, 7),
            (samples.uuid_of(2).uuid, 3),
        ]

    def test_stay_as_they_are_without_either(self) -> None:
        staged = create_index(index(1))
        assert rebase_indices(staged, [footprint(delete(fragment(0, deleted=1)), staged=False)], ()) == staged


class TestReuseIndex:
    @staticmethod
    def contents(ours: Content, read: Content, latest: Content) -> ReuseContents:
        return ReuseContents(ours=ours, read=read, latest=latest)

    def test_takes_in_entries_that_are_new(self) -> None:
        kept, old, new = (([0], [5]), ([1], [6]), ([2], [7]))
        staged = create_index(samples.reuse_index(1, kept), removed=(samples.reuse_index(2, kept, old),))
        contents = self.contents(
            *(samples.reuse_content(samples.reuse_index(1, *groups).index_details.value) for groups in (
                (kept,), (kept, old), (kept, old, new)
            ))
        )  # fmt: skip
        facts = RebaseFacts(latest_version=LATEST, file_ids=count(), reuse=contents, index_uuid=b"n" * 16)
        rebase = operation_of(staged).rebase
        assert rebase is not None
        rebased = rebase(staged, facts)
        assert isinstance(rebased, RebasedTransaction)
        (made,) = rebased.transaction.create_index.new_indices
        content = reuse_content(made)
        assert isinstance(content, Content)
        assert [[one.id for one in entry.groups[0].old_fragments] for entry in content.versions] == [[0], [2]]
        assert list(BitMap.deserialize(made.fragment_bitmap)) == [5, 7]
        assert (made.uuid.uuid, made.dataset_version) == (b"n" * 16, LATEST)
        assert not rebased.files

    def test_in_a_file_of_its_own_when_it_is_large(self) -> None:
        staged = create_index(samples.reuse_index(1), removed=(samples.reuse_index(2),))
        large = Content()
        large.versions.add().groups.add(changed_row_addrs=b"x" * REUSE_INLINE_BYTES_MAX)
        rebased = rebase_reuse(
            staged, self.contents(Content(), Content(), large), latest_version=LATEST, index_uuid=b"n" * 16
        )
        (made,) = rebased.transaction.create_index.new_indices
        content = reuse_content(made)
        assert isinstance(content, ExternalContent)
        (key,) = rebased.files
        assert content == (key, 0, len(rebased.files[key]))
        assert Content.FromString(rebased.files[key]) == large


@pytest.mark.parametrize("kind", ["delete", "update"])
def test_the_staged_transaction_is_left_alone(kind: str) -> None:
    staged = delete(fragment(0, deleted=1)) if kind == "delete" else update(fragment(0, deleted=1))
    before = staged.SerializeToString()
    merge(staged, rows_of(), rows_of(1), rows_of(2))
    assert staged.SerializeToString() == before
