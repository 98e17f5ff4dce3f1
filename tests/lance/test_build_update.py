"""Versions made by an Update: rows that move, rows that change in place, rows that are inserted."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from pyroaring import BitMap

from committerd.errors import InvalidRequest
from committerd.lance.transactions.transaction import operation_of
from committerd_common.messages import DataFragment, Manifest, Transaction
from committerd_common.row_ids import (
    RowIds,
    VersionRun,
    decode_row_ids,
    decode_versions,
    encode_row_ids,
    encode_versions,
)
from tests.lance import samples
from tests.lance.samples import (
    GIVEN,
    after,
    covered,
    fragment,
    generation,
    ids,
    index,
    table,
    transaction,
    with_row_ids,
)


def updating(*updated: DataFragment, **other: object) -> Transaction:
    return transaction(update=Transaction.Update(updated_fragments=updated, **other))  # type: ignore[arg-type]


def moved_to(number: int, *segments: range, rows: int = 3) -> DataFragment:
    return with_row_ids(fragment(number, rows=rows, name=f"moved{number}"), segments)


class TestWhereLance4Writes:
    """It mistakes a row id for an address."""

    @staticmethod
    def current(created: list[tuple[int, int]]) -> Manifest:
        made = samples.manifest(fragment(0, rows=5), fragment(3, rows=5), stable=True, writer=("lance", "4.0.0"))
        runs = [VersionRun(rows, version) for rows, version in created]
        made.fragments[0].inline_created_at_versions = encode_versions(runs)
        return made

    @pytest.mark.parametrize(
        ("ids_of_rows", "wanted"),
        [
            ((range(3),), [4, 4, 5]),
            ((range(3, 8),), [5, 1, 1, 1, 1]),
            ((range(1, 2), range(9, 10), range(2, 3)), [4, 1, 5]),
            ((range(3 * 2**32, 3 * 2**32 + 2),), [1, 1]),
            ((range(7 * 2**32 - 1, 7 * 2**32 + 1),), [1, 1]),
        ],
    )
    def test_rows_were_created_when_the_rows_at_these_addresses_were(
        self, ids_of_rows: tuple[range, ...], wanted: list[int]
    ) -> None:
        current = self.current([(2, 4), (2, 5)])
        current.next_row_id = 8 * 2**32
        current.fragments.append(with_row_ids(fragment(9, rows=len(wanted)), ids_of_rows))
        moved = moved_to(0, *ids_of_rows, rows=len(wanted))
        staged = updating(new_fragments=[moved], removed_fragment_ids=[9], update_mode=Transaction.REWRITE_ROWS)
        built = after(table(current), staged)
        made = built.manifest.fragments[-1]
        assert created(made) == wanted
        assert last_updated(made) == [6] * len(wanted)

    def test_rows_in_no_order(self) -> None:
        moved = with_row_ids(fragment(0, rows=3, name="moved"), [range(3, 4), range(1), range(9, 10)])
        moved.inline_row_ids = encode_row_ids(RowIds((array("Q", [3, 0, 9]),)))
        built = after(
            table(self.current([(2, 4), (3, 5)])), updating(new_fragments=[moved], removed_fragment_ids=[0, 3])
        )
        assert created(built.manifest.fragments[-1]) == [5, 4, 1]

    def test_columns_that_were_replaced_change_no_version(self) -> None:
        current = self.current([(5, 4)])
        group = Transaction.DataReplacementGroup(fragment_id=0, new_file=samples.data_file("new", (0, 1, 2)))
        replaced = transaction(data_replacement=Transaction.DataReplacement(replacements=[group]))
        assert not after(table(current), replaced).manifest.fragments[0].inline_last_updated_at_versions
        kept = [DataFragment.FromString(one.SerializeToString()) for one in current.fragments]
        kept[0].files.append(samples.data_file("added", [3]))
        schema = [samples.column(one) for one in range(4)]
        merged = transaction(merge=Transaction.Merge(fragments=kept, schema=schema))
        assert not after(table(current), merged).manifest.fragments[0].inline_last_updated_at_versions


def stable_table(*fragments: DataFragment) -> Manifest:
    return samples.manifest(*fragments, stable=True)


def row_ids(made: DataFragment) -> list[int]:
    return list(decode_row_ids(made.inline_row_ids, fragment=made.id, staged=False))


def created(made: DataFragment) -> list[int]:
    runs = decode_versions(made.inline_created_at_versions, fragment=made.id, staged=False)
    return [run.version for run in runs for _ in range(run.rows)]


def last_updated(made: DataFragment) -> list[int]:
    runs = decode_versions(made.inline_last_updated_at_versions, fragment=made.id, staged=False)
    return [run.version for run in runs for _ in range(run.rows)]


def of_version(made: DataFragment, *runs: tuple[int, int]) -> DataFragment:
    stamp = encode_versions([VersionRun(*run) for run in runs])
    made.inline_created_at_versions = made.inline_last_updated_at_versions = stamp
    return made


def test_changes_removes_and_adds() -> None:
    current = table(samples.manifest(fragment(0), fragment(1), fragment(2)), index(1, fragments=[0, 1, 2]))
    built = after(
        current, updating(fragment(0, deleted=1), removed_fragment_ids=[1], new_fragments=[fragment(0, name="new")])
    )
    assert ids(built) == [0, 2, 3]
    assert covered(built) == {"i1": [0, 1, 2]}


def test_an_index_does_not_cover_what_was_rewritten_in_place() -> None:
    current = table(
        samples.manifest(fragment(0), fragment(1)), index(1, fields=[1], fragments=[0, 1]), index(2, fragments=[0])
    )
    staged = updating(fragment(0, name="other"), fields_modified=[1], update_mode=Transaction.REWRITE_COLUMNS)
    assert covered(after(current, staged)) == {"i1": [1], "i2": [0]}


def test_an_index_on_a_list_does_not_cover_what_was_rewritten_in_its_elements() -> None:
    columns = [samples.column(0), samples.column(1), samples.column(2, parent=1)]
    current = table(
        samples.manifest(fragment(0), fragment(1), columns=columns),
        index(1, fields=[1], fragments=[0, 1]),
        index(2, fields=[0], fragments=[0, 1]),
    )
    assert covered(after(current, updating(fragment(0), fields_modified=[2]))) == {"i1": [1], "i2": [0, 1]}


class TestFieldsThatAWriterDoesNotName:
    @staticmethod
    def completed(staged: Transaction, *latest: DataFragment) -> list[int]:
        complete = operation_of(staged).completed
        assert complete is not None
        made = complete(staged, samples.manifest(*latest))
        assert (made is staged) == (made == staged)
        return list(made.update.fields_modified)

    @staticmethod
    def rewritten(*fields: int) -> DataFragment:
        made = fragment(0)
        for file in made.files:
            file.fields[:] = [-2 if one in fields else one for one in file.fields]
        made.files.append(samples.data_file("new", fields))
        return made

    def test_are_modified_all_the_same(self) -> None:
        staged = updating(self.rewritten(1, 2))
        assert self.completed(staged, fragment(0)) == [1, 2]
        staged.update.fields_modified.append(2)
        assert self.completed(staged, fragment(0)) == [2, 1]

    def test_do_not_include_what_it_names_or_the_table_lacks(self) -> None:
        assert self.completed(updating(self.rewritten(1), fields_modified=[1]), fragment(0)) == [1]
        assert self.completed(updating(self.rewritten(8)), fragment(0)) == []

    def test_are_none_where_files_stay(self) -> None:
        assert self.completed(updating(fragment(0, deleted=3)), fragment(0)) == []
        assert self.completed(updating(self.rewritten(1)), fragment(7)) == []

    def test_are_found_by_file_base_and_column(self) -> None:
        for name, value in (("path", "other.lance"), ("base_id", 3)):
            moved = fragment(0)
            setattr(moved.files[0], name, value)
            assert self.completed(updating(moved), fragment(0)) == [0, 1, 2]
        swapped = fragment(0)
        swapped.files[0].column_indices[:] = [1, 0, 2]
        assert self.completed(updating(swapped), fragment(0)) == [0, 1]
        more = fragment(0)
        more.files[0].column_indices.append(5)
        assert self.completed(updating(more), fragment(0)) == []


def test_an_index_without_a_list_is_left_without() -> None:
    current = table(samples.manifest(fragment(0)), index(1, fields=[1], fragments=None))
    built = after(current, updating(fragment(0, name="other"), fields_modified=[1]))
    assert [one.fragment_bitmap for one in built.indices] == [b""]


def test_moved_rows_keep_their_ids_and_the_version_that_made_them() -> None:
    current = stable_table(of_version(fragment(0), (4, 1), (6, 3)), of_version(fragment(1), (10, 4)))
    staged = updating(
        with_row_ids(fragment(0, deleted=2), [range(10)]),
        with_row_ids(fragment(1, deleted=1), [range(10, 20)]),
        new_fragments=[moved_to(0, range(3, 5), range(12, 13))],
    )
    made = after(table(current), staged).manifest
    assert row_ids(made.fragments[2]) == [3, 4, 12]
    assert created(made.fragments[2]) == [1, 3, 4]
    assert last_updated(made.fragments[2]) == [6, 6, 6]
    assert made.next_row_id == 20


def test_a_row_that_moved_before_moves_on_only_from_where_it_is() -> None:
    """Row 3 was in fragment 0, which still lists it, and is in fragment 1 now."""
    current = stable_table(
        with_row_ids(fragment(0, deleted=1), [range(10)]),
        with_row_ids(fragment(1, rows=5), [range(3, 4), range(10, 14)]),
        with_row_ids(fragment(2), [range(14, 24)]),
    )
    current.next_row_id = 24
    moved = moved_to(0, range(3, 4), rows=1)
    from_before = updating(with_row_ids(fragment(0, deleted=2), [range(10)]), new_fragments=[moved])
    with pytest.raises(InvalidRequest, match=r"id 3, that are in fragment 1") as caught:
        after(table(current), from_before)
    assert caught.value.code == "row_ids"
    from_there = updating(
        with_row_ids(fragment(1, rows=5, deleted=1), [range(3, 4), range(10, 14)]), new_fragments=[moved]
    )
    built = after(table(current), from_there).manifest.fragments
    assert row_ids(built[3]) == [3]
    further = samples.manifest(*built, stable=True)
    further.next_row_id = 24
    again = updating(
        with_row_ids(fragment(3, rows=1, name="moved0"), [range(3, 4)]), new_fragments=[moved], removed_fragment_ids=[3]
    )
    assert row_ids(after(table(further), again).manifest.fragments[-1]) == [3]


def test_each_member_moves_rows_of_fragments_that_lose_rows_for_it() -> None:
    """Together two faulty members delete as many rows as they move, in the same fragments."""
    current = table(stable_table(fragment(0), fragment(1)))
    deleting = [with_row_ids(fragment(number, deleted=1), [range(10 * number, 10 * number + 10)]) for number in (0, 1)]
    new = [moved_to(number, range(10 * number, 10 * number + 1), rows=1) for number in (0, 1)]
    members = replace(GIVEN, moves=[(1, frozenset({0})), (1, frozenset({1}))])
    built = after(current, updating(*deleting, new_fragments=new), members)
    assert [row_ids(one) for one in built.manifest.fragments[2:]] == [[0], [10]]
    crossed = updating(*deleting, new_fragments=new[::-1])
    with pytest.raises(InvalidRequest, match=r"the row with id 10, that are in fragment 1 now") as caught:
        after(current, crossed, members)
    assert caught.value.code == "row_ids"


def test_inserted_rows_get_new_ids_and_this_version() -> None:
    staged = updating(new_fragments=[moved_to(0, range(3, 4))], removed_fragment_ids=[0])
    made = after(table(stable_table(of_version(fragment(0), (10, 2)))), staged).manifest
    assert row_ids(made.fragments[0]) == [3, 10, 11]
    assert created(made.fragments[0]) == [2, 6, 6]
    assert made.next_row_id == 12


def test_rows_of_no_recorded_version_are_of_the_first() -> None:
    staged = updating(new_fragments=[moved_to(0, range(3))], removed_fragment_ids=[0])
    made = after(table(stable_table(fragment(0))), staged).manifest
    assert created(made.fragments[0]) == [1, 1, 1]


def test_a_row_that_is_in_two_fragments_was_made_with_the_first() -> None:
    later = with_row_ids(of_version(fragment(1, rows=1), (1, 9)), [range(3, 4)])
    staged = updating(new_fragments=[moved_to(0, range(3, 4), rows=1)], removed_fragment_ids=[1])
    current = stable_table(of_version(fragment(0), (10, 2)), later)
    assert created(after(table(current), staged).manifest.fragments[1]) == [2]


def test_a_version_list_that_is_too_short_is_of_the_first_version() -> None:
    current = stable_table(of_version(fragment(0), (2, 7)))
    staged = updating(new_fragments=[moved_to(0, range(1, 4))], removed_fragment_ids=[0])
    assert created(after(table(current), staged).manifest.fragments[0]) == [7, 1, 1]


def test_an_index_on_other_fields_finds_moved_rows_by_their_ids() -> None:
    current = table(
        stable_table(fragment(0), fragment(1)),
        index(1, fields=[0], fragments=[0, 1]),
        index(2, fields=[1], fragments=[0, 1]),
        index(3, fields=[0], fragments=[1]),
    )
    staged = updating(
        with_row_ids(fragment(0, deleted=3), [range(10)]),
        new_fragments=[moved_to(0, range(3))],
        fields_for_preserving_frag_bitmap=[1],
    )
    assert covered(after(current, staged)) == {"i1": [0, 1, 2], "i2": [0, 1], "i3": [1]}


def test_no_index_covers_a_fragment_with_inserted_rows() -> None:
    current = table(stable_table(fragment(0)), index(1, fields=[0], fragments=[0]))
    staged = updating(
        with_row_ids(fragment(0, deleted=3), [range(10)]),
        new_fragments=[moved_to(0, range(3), rows=4)],
        fields_for_preserving_frag_bitmap=[1],
    )
    assert covered(after(current, staged)) == {"i1": [0]}


def test_an_index_of_addresses_loses_moved_rows() -> None:
    addresses = index(1, fields=[0], fragments=[0])
    addresses.index_version = 1
    staged = updating(
        with_row_ids(fragment(0, deleted=3), [range(10)]),
        new_fragments=[moved_to(0, range(3))],
        fields_for_preserving_frag_bitmap=[1],
    )
    assert covered(after(table(stable_table(fragment(0)), addresses), staged)) == {"i1": [0]}


def test_in_place_nothing_moves() -> None:
    current = table(stable_table(fragment(0)), index(1, fields=[0], fragments=[0]))
    staged = updating(
        with_row_ids(fragment(0, name="other", deleted=3), [range(10)]),
        new_fragments=[moved_to(0, range(7, 10))],
        update_mode=Transaction.REWRITE_COLUMNS,
    )
    assert covered(after(current, staged)) == {"i1": [0]}


class TestRowsThatChangedInPlace:
    @staticmethod
    def staged(made: DataFragment) -> Transaction:
        return updating(made, update_mode=Transaction.REWRITE_COLUMNS)

    def test_are_named_by_offset(self) -> None:
        made = with_row_ids(of_version(fragment(0, name="other"), (10, 2)), [range(10)])
        listed, bitmap = self.staged(made), self.staged(made)
        listed.update.updated_fragment_offsets[0].values.extend([1, 9])
        bitmap.update.updated_fragment_offset_bitmaps[0] = bytes(BitMap([1, 9]).serialize())
        for staged in (listed, bitmap):
            built = after(table(stable_table(of_version(fragment(0), (10, 2)))), staged).manifest.fragments[0]
            assert last_updated(built) == [2, 6, 2, 2, 2, 2, 2, 2, 2, 6]
            assert created(built) == [2] * 10

    def test_are_not_known_where_the_writer_does_not_say(self) -> None:
        made = with_row_ids(of_version(fragment(0, name="other"), (10, 2)), [range(10)])
        built = after(table(stable_table(of_version(fragment(0), (10, 2)))), self.staged(made)).manifest.fragments[0]
        assert last_updated(built) == [2] * 10

    def test_are_not_made_up_where_nothing_was_recorded(self) -> None:
        staged = self.staged(with_row_ids(fragment(0, name="other"), [range(10)]))
        staged.update.updated_fragment_offsets[0].values.append(1)
        built = after(table(stable_table(fragment(0))), staged).manifest.fragments[0]
        assert not built.inline_last_updated_at_versions

    def test_must_be_there(self) -> None:
        made = with_row_ids(of_version(fragment(0, name="other"), (10, 2)), [range(10)])
        staged = self.staged(made)
        staged.update.updated_fragment_offsets[0].values.append(10)
        with pytest.raises(InvalidRequest, match="row 10 of fragment 0"):
            after(table(stable_table(fragment(0))), staged)

    def test_must_be_a_bitmap(self) -> None:
        made = with_row_ids(of_version(fragment(0, name="other"), (10, 2)), [range(10)])
        staged = self.staged(made)
        staged.update.updated_fragment_offset_bitmaps[0] = b"nonsense"
        with pytest.raises(InvalidRequest, match="not a Roaring bitmap"):
            after(table(stable_table(fragment(0))), staged)


def test_more_row_ids_than_rows() -> None:
    with pytest.raises(InvalidRequest, match="has 4 row ids and 3 rows"):
        after(
            table(stable_table(fragment(0))),
            updating(new_fragments=[moved_to(0, range(4))], removed_fragment_ids=[0]),
        )


@pytest.mark.parametrize(
    ("changed", "removed", "moved", "told"),
    [
        ([], [], range(3, 6), "brings 3 rows .* and deletes 0 rows"),
        ([], [7], range(3, 6), "deletes 0 rows"),
        ([], [1], range(3, 6), "3 rows, such as the row with id 3,"),
        ([fragment(0, deleted=4)], [], range(3, 6), "deletes 2 rows"),
        ([fragment(0, deleted=5)], [], range(9, 12), "2 rows, such as the row with id 10,"),
        ([fragment(0, deleted=2)], [], range(3, 4), "deletes 0 rows"),
    ],
)
def test_rows_do_not_move_and_stay_where_they_are(
    changed: list[DataFragment], removed: list[int], moved: range, told: str
) -> None:
    current = stable_table(fragment(0, deleted=2), fragment(1))
    staged = updating(
        *(with_row_ids(one, [range(10)]) for one in changed),
        new_fragments=[moved_to(0, moved)],
        removed_fragment_ids=removed,
    )
    with pytest.raises(InvalidRequest, match=told) as refused:
        after(table(current), staged)
    assert refused.value.code == "row_ids"


def test_a_fragment_that_is_changed_and_removed_loses_all_its_rows() -> None:
    staged = updating(
        with_row_ids(fragment(0, deleted=5), [range(10)]),
        new_fragments=[moved_to(0, range(8), rows=8)],
        removed_fragment_ids=[0],
    )
    assert ids(after(table(stable_table(fragment(0, deleted=2))), staged)) == [1]


def test_merged_generations_are_noted() -> None:
    current = table(samples.manifest(fragment(0)), samples.mem_wal_index(1))
    built = after(current, updating(merged_generations=[generation(1, 5)]))
    assert [(one.name, one.uuid.uuid) for one in built.indices] == [("__lance_mem_wal", b"i" * 16)]
