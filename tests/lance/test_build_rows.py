"""Versions made by the operations on rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from committerd.errors import InvalidRequest
from committerd.lance.versions.draft import CreateOptions
from committerd.lance.versions.fragments import CHOSEN_IDS_AHEAD
from committerd_common.messages import DataFragment, Manifest, Transaction
from tests.lance import samples
from tests.lance.samples import GIVEN, after, column, covered, fragment, ids, index, table, transaction


def appending(*fragments: DataFragment) -> Transaction:
    return transaction(append=Transaction.Append(fragments=fragments))


def overwriting(*fragments: DataFragment, **other: object) -> Transaction:
    schema = [column(0), column(1), column(2)]
    return transaction(overwrite=Transaction.Overwrite(fragments=fragments, schema=schema, **other))  # type: ignore[arg-type]


def deleting(*updated: DataFragment, removed: tuple[int, ...] = ()) -> Transaction:
    return transaction(delete=Transaction.Delete(updated_fragments=updated, deleted_fragment_ids=removed))


def rewriting(*groups: tuple[tuple[int, ...], tuple[int, ...]]) -> Transaction:
    made = [
        Transaction.Rewrite.RewriteGroup(
            old_fragments=[fragment(one) for one in old],
            new_fragments=[fragment(one, name=f"new{place}-{one}") for one in new],
        )
        for place, (old, new) in enumerate(groups)
    ]
    return transaction(rewrite=Transaction.Rewrite(groups=made))


def replacing(number: int, fields: tuple[int, ...], minor: int = 0) -> Transaction:
    group = Transaction.DataReplacementGroup(fragment_id=number, new_file=samples.data_file("new", fields, minor))
    return transaction(data_replacement=Transaction.DataReplacement(replacements=[group]))


class TestAppend:
    def test_ids_go_on_from_the_highest_ever(self) -> None:
        built = after(
            table(samples.manifest(fragment(0), max_fragment_id=3)), appending(fragment(0), fragment(0, name="b"))
        )
        assert ids(built) == [0, 4, 5]
        assert built.manifest.max_fragment_id == 5

    @pytest.mark.parametrize(
        ("brought", "given"),
        [
            ((50, 0), [0, 50, 3]),
            ((60, 50), [0, 60, 50]),
            ((0, 3), [0, 4, 3]),
            ((50, 50), [0, 50, 3]),
            ((2, 0), [0, 3, 4]),
            ((3 + CHOSEN_IDS_AHEAD, 0), [0, 3, 4]),
        ],
    )
    def test_an_id_that_a_fragment_brings_is_kept_where_nothing_had_it(
        self, brought: tuple[int, int], given: list[int]
    ) -> None:
        """In the order of their ids; if two bring the same id, the first one has it."""
        added = [fragment(one, name=f"n{place}") for place, one in enumerate(brought)]
        built = after(table(samples.manifest(fragment(0), max_fragment_id=2)), appending(*added))
        assert ids(built) == sorted(given)
        names = {one.files[0].path: one.id for one in built.manifest.fragments}
        assert [names["n0.lance"], names["n1.lance"]] == given[1:]
        assert built.manifest.max_fragment_id == max(given)

    def test_the_first_fragment_of_a_table_is_0(self) -> None:
        assert ids(after(table(samples.manifest()), appending(fragment(0)))) == [0]

    def test_old_tables_do_not_say_what_the_highest_was(self) -> None:
        current = samples.manifest(fragment(4))
        current.ClearField("max_fragment_id")
        assert ids(after(table(current), appending(fragment(0)))) == [4, 5]

    def test_nothing_makes_a_version_too(self) -> None:
        built = after(table(samples.manifest(fragment(0))), appending())
        assert (built.manifest.version, ids(built)) == (6, [0])

    def test_a_fragment_without_living_rows_is_left_out_and_its_id_spent(self) -> None:
        built = after(
            table(samples.manifest(fragment(0))), appending(fragment(0, rows=5, deleted=5), fragment(0, name="b"))
        )
        assert ids(built) == [0, 2]

    def test_indices_stay_as_they_are(self) -> None:
        built = after(table(samples.manifest(fragment(0)), index(1), index(2, fields=[9])), appending(fragment(0)))
        assert [one.name for one in built.indices] == ["i1", "i2"]

    def test_files_without_a_column_go(self) -> None:
        made = fragment(0)
        for name, fields in (("b", (-2, -2)), ("c", (3, -2))):
            made.files.append(samples.data_file(name, fields))
        built = after(table(samples.manifest()), appending(made))
        assert [file.path for file in built.manifest.fragments[0].files] == ["f0.lance", "c.lance"]

    def test_rows_get_ids_and_versions(self) -> None:
        current = samples.manifest(fragment(0, rows=10), version=2, stable=True)
        current.next_row_id = 110
        made = after(table(current), appending(fragment(0, name="b"))).manifest
        assert made.fragments[1].inline_row_ids.hex() == "0a060a04086e1078"
        assert made.fragments[1].inline_created_at_versions.hex() == "0a080a040a02100a1003"
        assert made.fragments[1].inline_last_updated_at_versions.hex() == "0a080a040a02100a1003"
        assert made.next_row_id == 120


class TestOverwrite:
    def test_ids_go_on_and_what_describes_the_table_stays(self) -> None:
        current = samples.manifest(fragment(3), config={"a": "1"}, table_metadata={"b": "2"})
        current.schema_metadata["old"] = b"x"
        built = after(
            table(current, index(1)),
            overwriting(fragment(0), config_upsert_values={"c": "3"}, schema_metadata={"new": b"y"}),
        )
        made = built.manifest
        assert ids(built) == [4]
        assert (dict(made.config), dict(made.table_metadata)) == ({"a": "1", "c": "3"}, {"b": "2"})
        assert dict(made.schema_metadata) == {"new": b"y"}
        assert built.indices == ()
        assert made.writer_feature_flags == 8

    def test_row_ids_go_on_too(self) -> None:
        built = after(table(samples.manifest(fragment(0), stable=True)), overwriting(fragment(0, name="b")))
        assert built.manifest.next_row_id == 20
        assert built.manifest.reader_feature_flags == 2

    def test_the_data_format_is_that_of_the_files(self) -> None:
        newer = DataFragment(id=0, physical_rows=1, files=[samples.data_file("b", minor=1)])
        assert after(table(samples.manifest(fragment(0))), overwriting(newer)).manifest.data_format.version == "2.1"
        assert after(table(samples.manifest(fragment(0))), overwriting()).manifest.data_format.version == "2.0"

    def test_makes_a_table(self) -> None:
        built = after(None, overwriting(fragment(7), fragment(7, name="b"), initial_bases=[{"id": 1, "path": "/b"}]))
        made = built.manifest
        assert (made.version, ids(built), made.max_fragment_id) == (1, [0, 1], 1)
        assert made.data_format.version == "2.0"
        assert made.reader_feature_flags == made.writer_feature_flags == 16
        assert made.writer_version.library == "committerd"

    def test_makes_a_table_whose_rows_have_ids(self) -> None:
        given = replace(GIVEN, create=CreateOptions(enable_stable_row_ids=True, data_storage_version="2.1"))
        made = after(None, overwriting(), given).manifest
        assert (made.reader_feature_flags, made.writer_feature_flags) == (2, 2)
        assert made.data_format.version == "2.1"
        assert not made.HasField("max_fragment_id")

    def test_bases_are_for_a_new_table(self) -> None:
        with pytest.raises(InvalidRequest, match="initial_bases"):
            after(table(samples.manifest()), overwriting(initial_bases=[{"id": 1, "path": "/b"}]))


class TestDelete:
    def test_changes_and_removes(self) -> None:
        current = table(samples.manifest(fragment(0), fragment(1), fragment(2)), index(1, fragments=[0, 1]))
        built = after(current, deleting(fragment(0, deleted=3), removed=(1, 777)))
        assert ids(built) == [0, 2]
        assert built.manifest.fragments[0].deletion_file.num_deleted_rows == 3
        assert built.manifest.reader_feature_flags == built.manifest.writer_feature_flags == 1
        assert covered(built) == {"i1": [0, 1]}

    def test_changes_deletions_and_nothing_else(self) -> None:
        current = table(samples.manifest(fragment(0), fragment(1, deleted=2)))
        other = fragment(0, name="other", deleted=3)
        other.files[0].fields[:] = [0]
        built = after(current, deleting(other, fragment(1, name="other")))
        assert [one.files for one in built.manifest.fragments] == [fragment(0).files, fragment(1).files]
        assert [one.deletion_file.num_deleted_rows for one in built.manifest.fragments] == [3, 0]

    def test_removing_counts_more_than_changing(self) -> None:
        assert ids(after(table(samples.manifest(fragment(0), fragment(1))), deleting(fragment(0), removed=(0,)))) == [1]

    def test_a_fragment_of_which_no_row_lives_goes(self) -> None:
        built = after(table(samples.manifest(fragment(0), fragment(1))), deleting(fragment(1, deleted=10)))
        assert ids(built) == [0]
        assert built.manifest.max_fragment_id == 1

    @pytest.mark.parametrize(
        ("writer", "kept"),
        [
            ({"library": "lance", "version": "4.0.0"}, ["i2"]),
            ({"library": "lance", "version": "14.0.2"}, ["i1", "i2"]),
            ({"library": "committerd", "version": "1.0.0", "build_metadata": "lance.4.0.0"}, ["i2"]),
            ({"library": "committerd", "version": "1.0.0", "build_metadata": "lance.14.0.2"}, ["i1", "i2"]),
            ({"library": "committerd", "version": "1.0.0"}, ["i1", "i2"]),
        ],
    )
    def test_a_vector_index_of_nothing_goes_where_lance_4_writes(self, writer: dict[str, str], kept: list[str]) -> None:
        made = samples.manifest(fragment(0))
        made.writer_version.CopyFrom(Manifest.WriterVersion(**writer))
        built = after(table(made, samples.vector_index(1), index(2)), deleting(removed=(0,)))
        assert [one.name for one in built.indices] == kept
        after_that = after(table(built.manifest, *built.indices), appending(fragment(0)))
        assert after_that.manifest.writer_version == built.manifest.writer_version

    def test_a_fragment_that_is_not_there_can_not_be_changed(self) -> None:
        with pytest.raises(InvalidRequest, match=r"fragments \[7\]"):
            after(table(samples.manifest(fragment(0))), deleting(fragment(7, deleted=1)))


class TestRewrite:
    def test_groups_take_the_place_of_their_fragments(self) -> None:
        current = samples.manifest(*(fragment(one) for one in range(10)), max_fragment_id=19)
        built = after(table(current), rewriting(((1, 2), (15, 16)), ((5, 8), (0,))))
        assert ids(built) == [0, 3, 4, 6, 7, 9, 15, 16, 20]
        assert built.manifest.max_fragment_id == 20

    def test_new_fragments_whose_rows_are_all_deleted_meanwhile_are_not_added(self) -> None:
        staged = rewriting(((0, 1), (5, 6)))
        staged.rewrite.groups[0].new_fragments[1].deletion_file.CopyFrom(samples.deletion_file(10))
        change = staged.rewrite.rewritten_indices.add(old_id=samples.uuid_of(1), new_id=samples.uuid_of(101))
        change.new_index_files.add(path="x", size_bytes=3)
        current = table(samples.manifest(fragment(0), fragment(1), fragment(2)), index(1, fragments=[0, 1, 2]))
        built = after(current, staged)
        assert ids(built) == [2, 5]
        assert built.manifest.max_fragment_id == 6
        assert covered(built) == {"i1": [2, 5]}

    def test_an_index_of_a_clone_that_is_rewritten_is_in_the_tables_own_folder(self) -> None:
        staged = rewriting(((0,), (5,)))
        staged.rewrite.rewritten_indices.add(old_id=samples.uuid_of(1), new_id=samples.uuid_of(101))
        old, other = index(1, fragments=[0]), index(2, fragments=[0])
        old.base_id = other.base_id = 3
        built = after(table(samples.manifest(fragment(0)), old, other), staged)
        assert [one.HasField("base_id") for one in built.indices] == [False, True]

    def test_every_old_fragment_must_be_there(self) -> None:
        with pytest.raises(InvalidRequest, match=r"fragments \[7, 8\]"):
            after(table(samples.manifest(fragment(0))), rewriting(((0, 7, 8), (9,))))

    def test_an_id_that_another_fragment_has(self) -> None:
        for groups in ((((0,), (1,)),), (((0,), (5,)), ((1,), (5,)))):
            with pytest.raises(InvalidRequest, match="which another fragment has"):
                after(table(samples.manifest(fragment(0), fragment(1))), rewriting(*groups))

    def test_a_rewritten_index_covers_the_new_fragments(self) -> None:
        staged = rewriting(((0, 1), (5,)))
        change = staged.rewrite.rewritten_indices.add(old_id=samples.uuid_of(1), new_id=samples.uuid_of(101))
        change.new_index_files.add(path="x", size_bytes=3)
        staged.rewrite.rewritten_indices.add(old_id=samples.uuid_of(77), new_id=samples.uuid_of(177))
        current = table(
            samples.manifest(*(fragment(one) for one in range(3))),
            index(1, fragments=[0, 1, 2], version=3),
            index(2, fragments=[0, 1]),
        )
        built = after(current, staged)
        assert covered(built) == {"i1": [2, 5], "i2": [0, 1]}
        assert built.indices[0].uuid == samples.uuid_of(101)
        assert [file.path for file in built.indices[0].files] == ["x"]
        assert built.indices[0].dataset_version == 3

    def test_an_index_of_half_a_group_can_not_be_rewritten(self) -> None:
        staged = rewriting(((0, 1), (5,)))
        staged.rewrite.rewritten_indices.add(old_id=samples.uuid_of(1), new_id=samples.uuid_of(101))
        two = samples.manifest(fragment(0), fragment(1))
        with pytest.raises(InvalidRequest, match="covers only some"):
            after(table(two, index(1, fragments=[0])), staged)
        with pytest.raises(InvalidRequest, match="does not say what it covers"):
            after(table(two, index(1, fragments=None)), staged)

    def test_indices_of_row_ids_follow_them(self) -> None:
        zones = index(2, fragments=[0, 1])
        zones.index_details.type_url = "/lance.table.ZoneMapIndexDetails"
        addresses = index(3, fragments=[0, 1])
        addresses.index_version = 1
        current = samples.manifest(fragment(0), fragment(1), fragment(2), stable=True)
        staged = rewriting(((0, 1), (5,)))
        samples.with_row_ids(staged.rewrite.groups[0].new_fragments[0], [range(10)])
        built = after(
            table(
                current,
                index(1, fragments=[0, 1, 2]),
                zones,
                addresses,
                index(4, fragments=None),
                index(5, fragments=[2]),
            ),
            staged,
        )
        found = {one.name: one.fragment_bitmap for one in built.indices}
        assert found == {
            "i1": samples.bitmap([2, 5]),
            "i2": samples.bitmap([]),
            "i3": samples.bitmap([]),
            "i4": b"",
            "i5": samples.bitmap([2]),
        }


class TestMerge:
    @staticmethod
    def merging(*fragments: DataFragment, **other: object) -> Transaction:
        schema = [column(0), column(1), column(2), column(3)]
        return transaction(merge=Transaction.Merge(fragments=fragments, schema=schema, **other))  # type: ignore[arg-type]

    def test_brings_every_fragment_and_the_schema(self) -> None:
        wider = fragment(0)
        wider.files.append(samples.data_file("added", [3]))
        current = samples.manifest(fragment(0), fragment(1))
        current.schema_metadata["a"] = b"1"
        built = after(table(current, index(1)), self.merging(wider, fragment(1)))
        assert [len(one.files) for one in built.manifest.fragments] == [2, 1]
        assert [field.id for field in built.manifest.fields] == [0, 1, 2, 3]
        assert dict(built.manifest.schema_metadata) == {"a": b"1"}
        assert covered(built) == {"i1": [0]}

    def test_may_bring_schema_metadata_and_new_fragments(self) -> None:
        staged = self.merging(fragment(0), fragment(40), schema_metadata={"b": b"2"})
        built = after(table(samples.manifest(fragment(0))), staged)
        assert ids(built) == [0, 40]
        assert dict(built.manifest.schema_metadata) == {"b": b"2"}

    def test_new_fragments_without_an_id_of_their_own(self) -> None:
        staged = self.merging(fragment(0), fragment(1), fragment(0, name="new"), fragment(0, name="newer"))
        built = after(table(samples.manifest(fragment(0), fragment(1))), staged)
        assert [one.files[0].path for one in built.manifest.fragments] == [
            "f0.lance",
            "f1.lance",
            "new.lance",
            "newer.lance",
        ]
        assert ids(built) == [0, 1, 2, 3]

    def test_an_index_does_not_cover_a_field_in_another_file(self) -> None:
        rewritten = fragment(0)
        rewritten.files[0].fields[:] = [0, -2, 2]
        rewritten.files.append(samples.data_file("other", [1]))
        current = table(samples.manifest(fragment(0), fragment(1)), index(1, fields=[1], fragments=[0, 1]), index(2))
        built = after(current, self.merging(rewritten, fragment(1)))
        assert covered(built) == {"i1": [1], "i2": [0]}

    def test_changed_rows_get_a_version(self) -> None:
        current = samples.manifest(fragment(0), fragment(1), stable=True)
        kept = [DataFragment.FromString(one.SerializeToString()) for one in current.fragments]
        kept[0].files.append(samples.data_file("added", [3]))
        made = after(table(current), self.merging(*kept, fragment(9))).manifest.fragments
        assert made[0].inline_last_updated_at_versions
        assert not made[0].inline_created_at_versions
        assert not made[1].inline_last_updated_at_versions
        assert made[2].inline_created_at_versions


class TestDataReplacement:
    def test_of_all_the_columns_of_a_file(self) -> None:
        built = after(
            table(samples.manifest(fragment(0), fragment(1)), index(1, fragments=[0, 1])), replacing(0, (0, 1, 2))
        )
        assert [file.path for file in built.manifest.fragments[0].files] == ["new.lance"]
        assert [file.path for file in built.manifest.fragments[1].files] == ["f1.lance"]
        assert covered(built) == {"i1": [1]}

    def test_of_a_column_that_had_no_data(self) -> None:
        schema = [samples.column(number) for number in range(4)]
        built = after(table(samples.manifest(fragment(0), columns=schema)), replacing(0, (3,)))
        assert [list(file.fields) for file in built.manifest.fragments[0].files] == [[0, 1, 2], [3]]

    def test_of_some_columns_of_a_file(self) -> None:
        built = after(table(samples.manifest(fragment(0))), replacing(0, (1,)))
        assert [list(file.fields) for file in built.manifest.fragments[0].files] == [[0, -2, 2], [1]]

    def test_a_file_of_another_version_takes_no_place(self) -> None:
        built = after(table(samples.manifest(fragment(0))), replacing(0, (0, 1, 2), minor=1))
        assert [list(file.fields) for file in built.manifest.fragments[0].files] == [[0, 1, 2]]

    def test_of_columns_with_and_without_data(self) -> None:
        with pytest.raises(InvalidRequest, match="only; replace existing"):
            after(table(samples.manifest(fragment(0))), replacing(0, (1, 3)))

    def test_of_a_struct_whether_files_list_its_field_or_not(self) -> None:
        schema = [samples.column(0), samples.column(3), *(samples.column(one, parent=3) for one in (1, 2))]
        current = table(samples.manifest(fragment(0), columns=schema))
        built = after(current, replacing(0, (3, 1, 2)))
        assert [list(file.fields) for file in built.manifest.fragments[0].files] == [[0, -2, -2], [3, 1, 2]]
        for place, left in ((0, [[0, -2, -2], [3, -2, -2], [1, 2]]), (-1, [[0, -2, -2], [1, 2]])):
            built.manifest.fragments[0].files[1].column_indices[0] = place
            again = after(table(built.manifest), replacing(0, (1, 2), minor=1))
            assert [list(file.fields) for file in again.manifest.fragments[0].files] == left

    def test_of_a_fragment_that_is_not_there(self) -> None:
        with pytest.raises(InvalidRequest, match=r"fragments \[7\]"):
            after(table(samples.manifest(fragment(0))), replacing(7, (0,)))

    def test_changes_all_rows(self) -> None:
        made = after(table(samples.manifest(fragment(0), stable=True)), replacing(0, (1,))).manifest.fragments[0]
        assert made.inline_last_updated_at_versions.hex() == "0a080a040a02100a1006"
