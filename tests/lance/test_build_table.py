"""Versions made by operations on indices, the schema, and the table as a whole."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from committerd.errors import InvalidRequest
from committerd.lance.format.bounds import RESERVABLE_MAX
from committerd.lance.format.feature_flags import FeatureFlag
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.versions.next_version import NextVersion
from committerd_common.index_details import pack_details, unpack_details
from committerd_common.messages import (
    DataFragment,
    Field,
    IndexCatchupProgress,
    IndexMetadata,
    Manifest,
    MemWalIndexDetails,
    Transaction,
)
from tests.lance import samples
from tests.lance.operations import create_index, update
from tests.lance.samples import (
    GIVEN,
    after,
    column,
    covered,
    fragment,
    generation,
    ids,
    index,
    manifest,
    table,
    transaction,
    updates,
    vector_index,
)


def config(**changes: object) -> Transaction:
    return transaction(update_config=Transaction.UpdateConfig(**changes))  # type: ignore[arg-type]


def creating(*new: IndexMetadata, removed: tuple[IndexMetadata, ...] = ()) -> Transaction:
    return transaction(create_index=Transaction.CreateIndex(new_indices=new, removed_indices=removed))


def merging(*generations: tuple[int, int]) -> Transaction:
    state = Transaction.UpdateMemWalState(merged_generations=[generation(*one) for one in generations])
    return transaction(update_mem_wal_state=state)


def generations(made: IndexMetadata) -> dict[int, int]:
    details = unpack_details(made, MemWalIndexDetails)
    return {int.from_bytes(one.region_id.uuid, "big"): one.generation for one in details.merged_generations}


class TestEveryVersion:
    def test_carries_what_nobody_changed(self) -> None:
        current = manifest(
            fragment(0, deleted=1),
            config={"a": "1"},
            table_metadata={"b": "2"},
            tag="old",
            branch="feature",
            transaction_section_v14=7,
            transaction_section=8,
            index_section=9,
        )
        current.base_paths.add(id=1, path="/b")
        made = after(table(current), transaction(tag="new", append=Transaction.Append())).manifest
        assert (dict(made.config), dict(made.table_metadata), made.branch) == ({"a": "1"}, {"b": "2"}, "feature")
        assert made.tag == "new"
        assert made.transaction_file == "1-x.txn"
        assert (made.reader_feature_flags, made.writer_feature_flags) == (17, 25)
        assert not any(
            made.HasField(name) for name in ("transaction_section", "transaction_section_v14", "index_section")
        )

    def test_is_younger_than_the_one_before(self) -> None:
        current = manifest()
        current.timestamp.FromDatetime(datetime(2031, 1, 1, tzinfo=UTC))
        made = after(table(current), transaction(append=Transaction.Append())).manifest
        assert made.timestamp.ToNanoseconds() == current.timestamp.ToNanoseconds() + 1000
        current.timestamp.FromDatetime(datetime(2029, 1, 1, tzinfo=UTC))
        made = after(table(current), transaction(append=Transaction.Append())).manifest
        assert made.timestamp.ToDatetime(UTC) == samples.NOW

    def test_is_not_dated_far_ahead_because_another_writer_was(self) -> None:
        current = manifest()
        for before, expected in (
            (samples.NOW + timedelta(minutes=4), samples.NOW + timedelta(minutes=4, microseconds=1)),
            (samples.NOW + timedelta(minutes=5), samples.NOW),
        ):
            current.timestamp.FromDatetime(before)
            given = replace(samples.GIVEN, ahead_max=timedelta(minutes=5))
            made = after(table(current), transaction(append=Transaction.Append()), given).manifest
            assert made.timestamp.ToDatetime(UTC) == expected

    @pytest.mark.parametrize("ahead_max", [None, timedelta(minutes=5)])
    @pytest.mark.parametrize(
        ("seconds", "nanos"),
        [
            (253_402_300_799, 999_999_999),
            (253_402_300_800, 0),
            (2**63 - 1, 2**31 - 1),
            (-(2**63), -(2**31)),
            (-62_135_596_801, 0),
            (0, -1),
        ],
    )
    def test_has_a_time_although_a_foreign_version_is_dated_when_no_calendar_reaches(
        self, seconds: int, nanos: int, ahead_max: timedelta | None
    ) -> None:
        current = manifest()
        current.timestamp.seconds, current.timestamp.nanos = seconds, nanos
        given = replace(samples.GIVEN, ahead_max=ahead_max)
        made = after(table(current), transaction(append=Transaction.Append()), given).manifest
        assert made.timestamp.ToDatetime(UTC) == samples.NOW

    def test_carries_the_flag_of_mixed_file_versions(self) -> None:
        current = manifest(fragment(0))
        current.reader_feature_flags = current.writer_feature_flags = FeatureFlag.MIXED_FILE_VERSIONS
        made = after(table(current), transaction(append=Transaction.Append())).manifest
        assert (made.reader_feature_flags, made.writer_feature_flags) == (256, 256)

    def test_has_the_flag_of_mixed_file_versions_from_the_first_other_file_on(self) -> None:
        current = manifest(fragment(0))
        made = fragment(0, name="x")
        for minor, flags in ((0, 0), (1, 256)):
            made.files[0].file_minor_version = minor
            built = after(table(current), transaction(append=Transaction.Append(fragments=[made]))).manifest
            assert (built.reader_feature_flags, built.writer_feature_flags) == (flags, flags)

    def test_has_segments_of_one_kind_for_different_fragments(self) -> None:
        there = index(1, name="x", fragments=[0, 7])
        current = table(manifest(fragment(0), fragment(1), fragment(2)), there, index(9, name="y", fragments=[0]))
        assert covered(after(current, create_index(index(2, name="x", fragments=[1, 7]))))["x"]
        apart, twice = index(2, name="x", fragments=[1]), index(2, name="x", fragments=[0])
        apart.index_version = 1
        elsewhere, vectors = index(2, name="x", fragments=[1], fields=[1]), vector_index(2, name="x", fragments=[1])
        for segment, told, code in (
            (elsewhere, r"fields \[0\] and \[1\]", "index_fields"),
            (vectors, "of kinds BTreeIndexDetails and VectorIndexDetails", "index_details"),
            (apart, "addresses of rows", "index_details"),
            (twice, "two segments for fragments 0", "index_bitmap"),
        ):
            with pytest.raises(InvalidRequest, match=told) as caught:
                after(current, create_index(segment))
            assert caught.value.code == code
            assert covered(after(current, create_index(segment, removed=(there,))))["x"]
        vectors.ClearField("index_details")
        assert covered(after(current, create_index(vectors)))["x"]
        both = create_index(index(2, name="z", fragments=[1]), index(3, name="z", fragments=[2, 1]))
        with pytest.raises(InvalidRequest, match="two segments for fragments 1"):
            after(current, both)

    def test_has_the_flag_of_covering_fields_as_long_as_an_index_has_some(self) -> None:
        covering = index(1, name="x", fields=[0, 1])
        covering.covering_fields.append(1)
        current = table(manifest(fragment(0)), covering)
        append = transaction(append=Transaction.Append())
        drop = transaction(create_index=Transaction.CreateIndex(removed_indices=[covering]))
        for staged, flags in ((append, 128), (drop, 0)):
            built = after(current, staged).manifest
            assert (built.reader_feature_flags, built.writer_feature_flags) == (flags, flags)
        segment = index(2, name="x", fields=[0])
        with pytest.raises(InvalidRequest, match="covering fields"):
            after(current, transaction(create_index=Transaction.CreateIndex(new_indices=[segment])))
        replaced = Transaction.CreateIndex(new_indices=[segment], removed_indices=[covering])
        assert after(current, transaction(create_index=replaced)).manifest.reader_feature_flags == 0

    def test_has_its_fragments_in_order(self) -> None:
        current = manifest(fragment(3), fragment(1))
        assert ids(after(table(current), transaction(append=Transaction.Append()))) == [1, 3]

    def test_takes_the_queues_entries_in_place_of_older_ones(self) -> None:
        current = table(manifest(table_metadata={"committerd.position": "old", "committerd.app.x": "1", "mine": "2"}))
        staged = transaction(append=Transaction.Append())
        kept = after(current, staged).manifest.table_metadata
        assert dict(kept) == {"committerd.position": "old", "committerd.app.x": "1", "mine": "2"}
        new = after(
            current, staged, replace(GIVEN, table_metadata={"committerd.position": "new"})
        ).manifest.table_metadata
        assert dict(new) == {"committerd.position": "new", "mine": "2"}

    def test_has_indices_as_readers_take_them(self) -> None:
        reuse = samples.reuse_index(9, ([0, 1], [5]), ([2], [6]), ([6], [7]))
        current = manifest(fragment(3), fragment(5), fragment(7))
        details = reuse.index_details.value
        given = replace(GIVEN, reuse=samples.reuse_content(details))
        built = after(
            table(current, index(1, fragments=[0, 1, 2]), index(2, fragments=[0, 3]), index(3, fragments=[3]), reuse),
            transaction(append=Transaction.Append()),
            given,
        )
        assert covered(built) == {"i1": [5, 7], "i2": [3], "i3": [3], "__lance_frag_reuse": [5, 6, 7]}

    def test_needs_a_table_unless_it_makes_one(self) -> None:
        with pytest.raises(InvalidRequest, match="there is no table"):
            after(None, transaction(append=Transaction.Append()))


class TestCreateIndex:
    def test_removes_what_it_lists_and_keeps_segments_of_the_same_name(self) -> None:
        a, b, c = (index(number, name="x") for number in (1, 2, 3))
        built = after(table(manifest(), a, b), creating(c, removed=(b,)))
        assert [one.uuid for one in built.indices] == [a.uuid, c.uuid]

    def test_an_index_listed_again_is_there_once(self) -> None:
        a, b, c = (index(number, name="x") for number in (1, 2, 3))
        again = index(1, name="x", version=9)
        built = after(table(manifest(), a, b), creating(again, c, removed=(b,)))
        assert [(one.uuid, one.dataset_version) for one in built.indices] == [(a.uuid, 9), (c.uuid, 1)]

    def test_there_is_one_of_each_system_index(self) -> None:
        current = table(manifest(), samples.mem_wal_index(1), index(2))
        built = after(current, creating(samples.mem_wal_index(3)))
        assert [one.uuid for one in built.indices] == [samples.uuid_of(2), samples.uuid_of(3)]


OLD = ("lance", "4.0.0")


class TestUpdateMemWalState:
    def test_keeps_the_fragments_and_the_places_of_the_indices(self) -> None:
        current = table(manifest(fragment(0), fragment(1)), samples.mem_wal_index(1, generation(1, 5)), index(2))
        built = after(current, merging((1, 6), (2, 3)))
        assert ids(built) == [0, 1]
        assert [one.name for one in built.indices] == ["__lance_mem_wal", "i2"]
        made = built.indices[0]
        assert generations(made) == {1: 6, 2: 3}
        assert (made.uuid.uuid, made.dataset_version, made.index_version) == (b"i" * 16, 6, 0)
        assert made.created_at == int(samples.NOW.timestamp() * 1000)

    def test_merges_what_follows_the_recorded_generation(self) -> None:
        current = table(manifest(), samples.mem_wal_index(1, generation(1, 5)))
        for merged, code in (
            (((1, 5),), "index_details"),
            (((1, 4),), "index_details"),
            (((1, 6), (1, 7)), "region_id"),
        ):
            with pytest.raises(InvalidRequest) as caught:
                after(current, merging(*merged))
            assert caught.value.code == code
        with pytest.raises(InvalidRequest, match="no index __lance_mem_wal"):
            after(table(manifest()), merging((1, 0)))
        assert generations(after(current, merging((2, 0))).indices[0]) == {1: 5, 2: 0}

    def test_of_an_old_lance_makes_the_index(self) -> None:
        (made,) = after(table(manifest(writer=OLD)), merging((1, 5), (2, 3))).indices
        assert generations(made) == {1: 5, 2: 3}

    def test_of_an_old_lance_keeps_the_higher_generation_of_a_region(self) -> None:
        merged = (generation(1, 5), generation(2, 5))
        current = table(manifest(writer=OLD), samples.mem_wal_index(1, *merged), index(2))
        built = after(current, merging((1, 4), (2, 6), (3, 1)))
        assert [one.name for one in built.indices] == ["__lance_mem_wal", "i2"]
        assert generations(built.indices[0]) == {1: 5, 2: 6, 3: 1}

    def test_of_nothing_changes_nothing(self) -> None:
        assert after(table(manifest()), merging()).indices == ()


class TestCatchingUp:
    """How far the indices of a table with a MemWAL are, after each change."""

    WAL = samples.mem_wal_index(1, generation(1, 5), generation(2, 0))

    @staticmethod
    def told(built: NextVersion) -> dict[str, list[int]]:
        """The generations of the regions 1 and 2 with which each index has caught up."""
        (wal,) = (one for one in built.indices if one.name == "__lance_mem_wal")
        details = unpack_details(wal, MemWalIndexDetails)
        return {
            one.index_name: [reached.generation for reached in one.caught_up_generations]
            for one in details.index_catchup
        }

    def caught_up(self, *indices: IndexMetadata, writer: tuple[str, str] = ("lance", "14.0.2")) -> ManifestFile:
        """A table of fragments 0 and 1, whose index i2 has caught up with generation 3 of region 1."""
        details = unpack_details(self.WAL, MemWalIndexDetails)
        caught = IndexCatchupProgress(index_name="i2", caught_up_generations=[generation(1, 3), generation(2, 0)])
        details.index_catchup.append(caught)
        wal = index(1, name="__lance_mem_wal", fields=(), fragments=None, details=pack_details(details))
        return table(manifest(fragment(0), fragment(1), writer=writer), wal, *indices)

    def test_an_index_of_everything_has_what_was_merged_before(self) -> None:
        current = table(manifest(fragment(0), fragment(1)), self.WAL, index(2, fragments=[0]))
        built = after(current, create_index(index(3, fragments=[0, 1])))
        assert self.told(built) == {"i3": [5, 0]}
        assert built.indices[0].uuid.uuid == b"i" * 16
        assert self.told(after(current, merging((1, 9)))) == {}
        whole = table(manifest(fragment(0)), self.WAL, index(2))
        assert self.told(after(whole, merging((1, 9), (3, 4)))) == {"i2": [5, 0, 0]}

    def test_an_index_that_stays_keeps_what_it_had(self) -> None:
        current = self.caught_up(index(2, fragments=[0]))
        built = after(current, config(config_updates=updates({"a": "b"})))
        assert self.told(built) == {"i2": [3, 0]}
        assert built.indices[0].uuid == current.indices[0].uuid
        assert self.told(after(current, merging((2, 7)))) == {"i2": [3, 0]}

    def test_an_index_that_changes_has_caught_up_with_nothing(self) -> None:
        current = self.caught_up(index(2, fragments=[0]))
        assert self.told(after(current, create_index(removed=(index(2),)))) == {}
        assert self.told(after(current, create_index(index(3, name="i2", fragments=[1])))) == {"i2": [5, 0]}
        assert self.told(after(self.caught_up(index(2, fragments=None)), create_index(index(3)))) == {"i2": [3, 0]}
        changed = update(fragment(0), fields_modified=[0], update_mode=Transaction.REWRITE_COLUMNS)
        assert self.told(after(self.caught_up(index(2, fragments=[0, 1])), changed)) == {}

    def test_an_empty_table_proves_nothing(self) -> None:
        current = table(manifest(), self.WAL, index(2))
        assert self.told(after(current, create_index(index(3)))) == {}

    def test_nothing_is_said_for_others(self) -> None:
        for current in (
            self.caught_up(index(2), writer=OLD),
            table(manifest(fragment(0)), samples.mem_wal_index(1), index(2)),
        ):
            built = after(current, create_index(index(3, fragments=[0, 1])))
            assert built.indices[0].uuid == current.indices[0].uuid
        made = after(table(manifest(fragment(0)), index(2)), create_index(self.WAL))
        assert self.told(made) == {}

    def test_details_that_nobody_can_read_stay(self) -> None:
        current = table(manifest(fragment(0)), index(1, name="__lance_mem_wal", fields=()), index(2))
        assert after(current, create_index(index(3))).indices[0] == current.indices[0]

    def test_fragments_that_were_compacted_count_as_readers_see_them(self) -> None:
        current = table(manifest(fragment(1)), self.WAL, index(2, fragments=[0]), samples.reuse_index(9, ([0], [1])))
        given = replace(GIVEN, reuse=samples.reuse_content(current.indices[2].index_details.value))
        built = after(current, config(config_updates=updates({"a": "b"})), given)
        assert self.told(built) == {"i2": [5, 0]}

    def test_a_restore_brings_what_was_said_then(self) -> None:
        then = self.caught_up(index(2, fragments=[0, 1]))
        restore = transaction(restore=Transaction.Restore(version=3))
        built = after(table(manifest(fragment(0))), restore, replace(GIVEN, restored=then))
        assert self.told(built) == {"i2": [3, 0]}


class TestProject:
    def test_drops_files_and_indices_of_dropped_columns(self) -> None:
        made = DataFragment(id=0, physical_rows=5, files=[samples.data_file("a", [0, 1]), samples.data_file("b", [2])])
        current = table(manifest(made), index(1, fields=[2]), index(2, fields=[0]))
        built = after(current, transaction(project=Transaction.Project(schema=[column(0), column(1)])))
        assert [file.path for file in built.manifest.fragments[0].files] == ["a.lance"]
        assert [one.name for one in built.indices] == ["i2"]
        assert [field.id for field in built.manifest.fields] == [0, 1]

    def test_leaves_no_fragment_without_data(self) -> None:
        made = DataFragment(id=0, physical_rows=5, files=[samples.data_file("b", [2])])
        with pytest.raises(InvalidRequest, match="every column that fragment 0 has data of"):
            after(table(manifest(made)), transaction(project=Transaction.Project(schema=[column(0), column(1)])))


class TestUpdateConfig:
    def test_sets_removes_and_replaces(self) -> None:
        current = table(manifest())
        for changes, wanted in (
            ({"a": "1", "b": "2"}, {"a": "1", "b": "2"}),
            ({"a": None, "zz": None}, {"b": "2"}),
        ):
            built = after(current, config(config_updates=updates(changes)))
            assert dict(built.manifest.config) == wanted
            assert built.manifest.writer_feature_flags == 8
            current = table(built.manifest)
        built = after(current, config(config_updates=updates({}, replace=True)))
        assert (dict(built.manifest.config), built.manifest.writer_feature_flags) == ({}, 0)

    def test_of_schema_and_fields(self) -> None:
        current = manifest()
        current.schema_metadata["old"] = b"\xff"
        current.fields[0].metadata["fm1"] = b"x"
        built = after(
            table(current),
            config(
                schema_metadata_updates=updates({"sm2": "q"}),
                field_metadata_updates={0: updates({"fm2": "w"}, replace=True)},
            ),
        ).manifest
        assert dict(built.schema_metadata) == {"old": b"\xff", "sm2": b"q"}
        assert dict(built.fields[0].metadata) == {"fm2": b"w"}

    def test_of_a_field_that_is_not_there(self) -> None:
        with pytest.raises(InvalidRequest, match="field 7"):
            after(table(manifest()), config(field_metadata_updates={7: updates({"a": "b"})}))

    def test_the_queues_entries_survive_a_replacement(self) -> None:
        current = manifest(table_metadata={"committerd.position": "p", "a": "1"})
        built = after(table(current), config(table_metadata_updates=updates({"b": "2"}, replace=True)))
        assert dict(built.manifest.table_metadata) == {"committerd.position": "p", "b": "2"}

    def test_the_queue_may_set_its_own_entries(self) -> None:
        current = manifest(table_metadata={"committerd.position": "p"})
        built = after(table(current), config(table_metadata_updates=updates({"committerd.position": "q"})))
        assert dict(built.manifest.table_metadata) == {"committerd.position": "q"}

    KEY, POSITION = (f"lance-schema:unenforced-primary-key{more}" for more in ("", ":position"))

    @staticmethod
    def required() -> Manifest:
        return manifest(columns=[column(0, nullable=False), column(1, nullable=False), column(2)])

    def test_a_primary_key_is_declared_once(self) -> None:
        declare = config(field_metadata_updates={0: updates({self.KEY: "True", self.POSITION: "2"})})
        built = after(table(self.required()), declare).manifest
        assert (built.fields[0].unenforced_primary_key, built.fields[0].unenforced_primary_key_position) == (True, 2)
        other = after(table(built), config(field_metadata_updates={0: updates({"other": "x"})})).manifest
        assert other.fields[0].unenforced_primary_key
        for number, entries in ((0, {self.KEY: None}), (0, {self.KEY: "true"}), (1, {self.KEY: "true"})):
            with pytest.raises(InvalidRequest, match="can't be changed"):
                after(table(built), config(field_metadata_updates={number: updates(entries)}))
        with pytest.raises(InvalidRequest, match="can't be changed"):
            after(table(built), config(field_metadata_updates={0: updates({}, replace=True)}))

    def test_a_key_of_several_columns(self) -> None:
        said = {0: updates({self.POSITION: "2"}), 1: updates({self.POSITION: "1"})}
        built = after(table(self.required()), config(field_metadata_updates=said)).manifest
        assert [one.unenforced_primary_key_position for one in built.fields] == [2, 1, 0]

    @pytest.mark.parametrize(
        ("number", "entries", "told"),
        [
            (0, {"": "no"}, "no field is part of it"),
            (0, {":position": "first"}, "no field is part of it"),
            (2, {"": "true"}, "may be null"),
        ],
    )
    def test_a_key_that_no_reader_can_use(self, number: int, entries: dict[str, str], told: str) -> None:
        changes = updates({self.KEY + key: value for key, value in entries.items()})
        with pytest.raises(InvalidRequest, match=told) as caught:
            after(table(self.required()), config(field_metadata_updates={number: changes}))
        assert caught.value.code == "schema"

    CLUSTERING = "lance-schema:unenforced-clustering-key:position"

    def test_a_clustering_key_is_declared_once(self) -> None:
        said = {0: updates({self.CLUSTERING: "2"}), 1: updates({self.CLUSTERING: "1"})}
        built = after(table(manifest()), config(field_metadata_updates=said)).manifest
        assert [one.unenforced_clustering_key_position for one in built.fields] == [2, 1, 0]
        other = after(table(built), config(field_metadata_updates={0: updates({"other": "x"})})).manifest
        assert [one.unenforced_clustering_key_position for one in other.fields] == [2, 1, 0]
        for number, changes in (
            (0, updates({self.CLUSTERING: None})),
            (0, updates({self.CLUSTERING: "2"})),
            (2, updates({self.CLUSTERING: "3"})),
            (0, updates({}, replace=True)),
        ):
            with pytest.raises(InvalidRequest, match="can't be changed") as caught:
                after(table(built), config(field_metadata_updates={number: changes}))
            assert caught.value.code == "schema"

    @pytest.mark.parametrize("place", ["first", "-1", "", None])
    def test_a_clustering_key_has_positions(self, place: str | None) -> None:
        with pytest.raises(InvalidRequest, match="no field is part of a clustering key"):
            after(table(manifest()), config(field_metadata_updates={0: updates({self.CLUSTERING: place})}))

    def test_a_schema_does_not_break_the_primary_key(self) -> None:
        """A primary key that is already broken may stay so: 4.0.0 can read it."""
        declare = config(field_metadata_updates={0: updates({self.KEY: "true"})})
        current = after(table(self.required()), declare).manifest
        changed = [Field.FromString(one.SerializeToString()) for one in current.fields]
        changed[0].nullable = True
        staged = transaction(project=Transaction.Project(schema=changed))
        with pytest.raises(InvalidRequest, match="may be null"):
            after(table(current), staged)
        current.fields[0].nullable = True
        assert after(table(current), staged).manifest.fields[0].nullable


class TestReserveFragments:
    def test_moves_the_counter(self) -> None:
        reserve = transaction(reserve_fragments=Transaction.ReserveFragments(num_fragments=2))
        current = table(manifest(fragment(3)), index(1))
        built = after(current, reserve)
        assert (built.manifest.max_fragment_id, ids(built), built.indices) == (5, [3], tuple(current.indices))
        assert after(table(manifest()), reserve).manifest.max_fragment_id == 2

    def reserving(self, number: int, highest: int) -> int:
        reserve = transaction(reserve_fragments=Transaction.ReserveFragments(num_fragments=number))
        return after(table(manifest(fragment(3), max_fragment_id=highest)), reserve).manifest.max_fragment_id

    def test_leaves_ids_to_those_who_bring_rows(self) -> None:
        assert self.reserving(2**20, 9) == 9 + 2**20
        assert self.reserving(5, RESERVABLE_MAX - 5) == RESERVABLE_MAX
        for number, highest in ((2**20 + 1, 9), (2**32 - 3, 9), (6, RESERVABLE_MAX - 5), (1, RESERVABLE_MAX + 9)):
            with pytest.raises(InvalidRequest, match="Reserve fewer") as refused:
                self.reserving(number, highest)
            assert refused.value.code == "fragment_ids_exhausted"
        assert self.reserving(0, RESERVABLE_MAX + 9) == RESERVABLE_MAX + 9
        full = table(manifest(fragment(3), max_fragment_id=RESERVABLE_MAX + 9))
        appended = transaction(append=Transaction.Append(fragments=[fragment(0, name="new")]))
        assert after(full, appended).manifest.max_fragment_id == RESERVABLE_MAX + 10

    def test_a_compaction_names_no_id_far_beyond_what_was_reserved(self) -> None:
        group = Transaction.Rewrite.RewriteGroup(
            old_fragments=[fragment(3)], new_fragments=[fragment(2**32 - 2, name="new")]
        )
        with pytest.raises(InvalidRequest, match="one transaction may reserve") as refused:
            after(table(manifest(fragment(3))), transaction(rewrite=Transaction.Rewrite(groups=[group])))
        assert refused.value.code == "fragment_ids_exhausted"


class TestUpdateBases:
    @staticmethod
    def adding(number: int, name: str | None, path: str) -> Transaction:
        bases = Transaction.UpdateBases()
        bases.new_bases.add(id=number, name=name, path=path)
        return transaction(update_bases=bases)

    def test_gives_ids_from_1_on(self) -> None:
        first = after(table(manifest()), self.adding(0, "a", "/a")).manifest
        assert [(base.id, base.path) for base in first.base_paths] == [(1, "/a")]
        assert (first.reader_feature_flags, first.writer_feature_flags) == (16, 16)
        second = after(table(first), self.adding(7, "b", "/b")).manifest
        third = after(table(second), self.adding(0, "c", "/c")).manifest
        assert [base.id for base in third.base_paths] == [1, 7, 8]

    @pytest.mark.parametrize(("number", "name", "path"), [(1, "b", "/b"), (0, "a", "/b"), (0, "b", "/a")])
    def test_ids_names_and_paths_differ(self, number: int, name: str, path: str) -> None:
        first = after(table(manifest()), self.adding(1, "a", "/a")).manifest
        with pytest.raises(InvalidRequest, match="must differ"):
            after(table(first), self.adding(number, name, path))

    def test_ids_do_not_run_over(self) -> None:
        highest = manifest()
        highest.base_paths.add(id=2**32 - 1, name="a", path="/a")
        with pytest.raises(InvalidRequest, match="give the new base a free id") as refused:
            after(table(highest), self.adding(0, "b", "/b"))
        assert refused.value.code == "base_taken"
        assert len(after(table(highest), self.adding(5, "b", "/b")).manifest.base_paths) == 2

    def test_no_name_is_a_name(self) -> None:
        first = after(table(manifest()), self.adding(0, None, "/a")).manifest
        with pytest.raises(InvalidRequest, match="only one base may lack a name"):
            after(table(first), self.adding(0, None, "/b"))


class TestRestore:
    RESTORE = transaction(restore=Transaction.Restore(version=1), tag="ignored")

    def restored(self, current: ManifestFile, old: ManifestFile | None) -> ManifestFile:
        built = after(current, self.RESTORE, replace(GIVEN, restored=old))
        return table(built.manifest, *built.indices)

    def test_brings_everything_back_but_the_counters(self) -> None:
        old = manifest(fragment(0), version=1, config={"a": "1"}, tag="v1", next_row_id=3, branch="b")
        old.table_metadata["committerd.position"] = "old"
        old.table_metadata["mine"] = "1"
        latest = manifest(fragment(1, deleted=1), version=5, columns=[column(9)], next_row_id=40)
        latest.table_metadata["committerd.position"] = "new"
        back = self.restored(table(latest, index(2)), table(old, index(1)))
        made = back.manifest
        assert (made.version, made.max_fragment_id, made.next_row_id) == (6, 1, 40)
        assert [one.id for one in made.fragments] == [0]
        assert [field.id for field in made.fields] == [0, 1, 2]
        assert (dict(made.config), made.tag, made.branch) == ({"a": "1"}, "v1", "b")
        assert dict(made.table_metadata) == {"committerd.position": "new", "mine": "1"}
        assert [one.name for one in back.indices] == ["i1"]
        assert (made.reader_feature_flags, made.writer_feature_flags) == (0, 8)
        assert (made.transaction_file, made.writer_version.library) == ("1-x.txn", "committerd")
        assert made.timestamp.ToDatetime(UTC) == samples.NOW

    def test_of_a_table_that_never_had_a_fragment(self) -> None:
        assert not self.restored(table(manifest()), table(manifest(version=1))).manifest.HasField("max_fragment_id")

    def test_of_a_version_that_is_gone(self) -> None:
        with pytest.raises(InvalidRequest, match="version 1, which does not exist"):
            self.restored(table(manifest()), None)

    def test_across_the_change_to_stable_row_ids(self) -> None:
        with pytest.raises(InvalidRequest, match="stable row ids"):
            self.restored(table(manifest(fragment(0), stable=True)), table(manifest(version=1)))


class TestClone:
    def cloning(self, *, shallow: bool, **other: str) -> Transaction:
        return transaction(clone=Transaction.Clone(is_shallow=shallow, ref_version=2, ref_path="/src", **other))

    def source(self) -> ManifestFile:
        far = DataFragment(id=1, physical_rows=5, files=[samples.data_file("far")])
        far.files[0].base_id = 3
        far.deletion_file.CopyFrom(samples.deletion_file(1))
        far.deletion_file.base_id = 3
        made = manifest(fragment(0, deleted=1), far, version=2, config={"a": "1"}, tag="t", branch="b", next_row_id=7)
        made.base_paths.add(id=3, path="/far")
        made.table_metadata["committerd.position"] = "p"
        made.reader_feature_flags |= 16
        made.writer_feature_flags |= 16
        return table(made, index(1))

    def test_shallow_reads_the_source_through_a_base(self) -> None:
        given = replace(GIVEN, source=self.source())
        built = after(None, self.cloning(shallow=True, ref_name="main", branch_name="feature"), given)
        made = built.manifest
        assert (made.version, made.max_fragment_id, made.next_row_id, made.tag, made.branch) == (2, 1, 7, "", "feature")
        assert [(b.id, b.name, b.is_dataset_root, b.path) for b in made.base_paths][1] == (4, "main", True, "/src")
        assert [one.files[0].base_id for one in made.fragments] == [4, 3]
        assert [one.deletion_file.base_id for one in made.fragments] == [4, 3]
        assert [one.base_id for one in built.indices] == [4]
        assert (made.reader_feature_flags, made.writer_feature_flags) == (17, 25)
        assert dict(made.table_metadata) == {}

    def test_the_first_base_is_0_and_may_have_no_name(self) -> None:
        given = replace(GIVEN, source=table(manifest(fragment(0), version=2)))
        (base,) = after(None, self.cloning(shallow=True), given).manifest.base_paths
        assert (base.id, base.HasField("name")) == (0, False)

    def test_deep_has_files_of_its_own(self) -> None:
        built = after(None, self.cloning(shallow=False), replace(GIVEN, source=self.source()))
        made = built.manifest
        assert not made.base_paths
        assert not any(one.files[0].HasField("base_id") for one in made.fragments)
        assert not any(one.deletion_file.HasField("base_id") for one in made.fragments)
        assert not built.indices[0].HasField("base_id")
        assert made.branch == ""

    def test_deep_without_deletions(self) -> None:
        given = replace(GIVEN, source=table(manifest(fragment(0), version=2)))
        assert ids(after(None, self.cloning(shallow=False), given)) == [0]

    def test_of_a_version_that_is_not_there(self) -> None:
        with pytest.raises(InvalidRequest, match="version 2 of '/src'"):
            after(None, self.cloning(shallow=True))

    def test_of_a_table_that_exists(self) -> None:
        with pytest.raises(InvalidRequest, match="there is one at version 5"):
            after(table(manifest()), self.cloning(shallow=True))
