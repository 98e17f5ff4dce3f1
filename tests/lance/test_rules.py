"""What the single rules examine beyond the fragments, fields and keys of the grid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from committerd.lance.conflicts.grid import Verdict, check
from committerd.lance.conflicts.key_filter import encoded_keys
from committerd.lance.format.kind import Kind
from committerd.lance.transactions.transaction import footprint_of_ours, footprint_of_theirs
from committerd_common.messages import Transaction
from committerd_common.own_properties import BLAKE2B_8, BY_KEY, CHANGES, KEY_HASH, KEYS, MERGE
from tests.lance import samples
from tests.lance.operations import (
    DELETES_OF_0,
    READ,
    B,
    C,
    I,
    R,
    append,
    config,
    create_index,
    delete,
    merge,
    merged,
    project,
    replacement,
    update,
    verdict,
)
from tests.lance.samples import column, fragment, generation, index, transaction


class TestRowsOfOneFragment:
    """`same_row`: deletions of one fragment can be merged as long as nothing else changed it."""

    def test_a_fragment_that_we_remove_can_not_have_lost_rows(self) -> None:
        assert verdict(delete(removed=(0,)), DELETES_OF_0) is R

    def test_a_fragment_that_they_removed_has_nothing_to_delete_from(self) -> None:
        assert verdict(DELETES_OF_0, delete(removed=(0,))) is R

    def test_columns_that_we_rewrote_lack_what_they_deleted(self) -> None:
        assert verdict(delete(fragment(0, name="other", deleted=1)), DELETES_OF_0) is R

    def test_columns_that_they_rewrote_are_not_in_ours(self) -> None:
        assert verdict(DELETES_OF_0, update(fragment(0, name="other"))) is R

    def test_a_file_size_that_one_side_does_not_know_is_no_other_file(self) -> None:
        sizeless = fragment(0, deleted=1)
        sizeless.files[0].file_size_bytes = 0
        assert verdict(DELETES_OF_0, delete(sizeless)) is B

    def test_without_the_read_version_nobody_knows_what_we_changed(self) -> None:
        assert verdict(DELETES_OF_0, DELETES_OF_0, read=None) is R
        assert verdict(DELETES_OF_0, delete(fragment(1, deleted=1)), read=None) is C

    def test_a_fragment_that_the_read_version_lacks_is_not_merged(self) -> None:
        unknown = fragment(7, deleted=1)
        assert verdict(delete(unknown), delete(unknown)) is R


class TestInsertedKeys:
    """`same_row_or_key` and `appended_key`: a filter names the inserted keys; an operation without a filter may have
    inserted any key.
    """

    @staticmethod
    def inserting(*hashes: int, fields: tuple[int, ...] = (0,)) -> Transaction:
        keys = Transaction.KeyExistenceFilter(field_ids=fields, exact=Transaction.ExactKeySetFilter(key_hashes=hashes))
        made = update(new_fragments=[fragment(0, name="new")], inserted_rows=keys)
        made.transaction_properties[KEY_HASH] = BLAKE2B_8
        return made

    def test_over_an_append(self) -> None:
        assert verdict(self.inserting(1), append()) is R
        assert verdict(update(fragment(0, deleted=1)), append()) is C

    def test_a_merge_by_key_over_an_append_that_names_its_keys(self) -> None:
        def appending(*hashes: int) -> Transaction:
            made = append()
            made.transaction_properties[KEYS] = encoded_keys(self.inserting(*hashes).update.inserted_rows)
            made.transaction_properties[KEY_HASH] = BLAKE2B_8
            return made

        by_key = self.inserting(1, 2)
        by_key.transaction_properties[MERGE] = BY_KEY
        assert verdict(by_key, appending(3)) is C
        assert verdict(by_key, appending(2, 3)) is R
        assert verdict(by_key, append()) is R
        assert verdict(self.inserting(1, 2), appending(3)) is R
        strange = append()
        strange.transaction_properties[KEYS] = "of another writer"
        assert verdict(by_key, strange) is R

    @pytest.mark.parametrize("ours", [BLAKE2B_8, "sha256-8", "", None])
    @pytest.mark.parametrize("theirs", [BLAKE2B_8, "sha256-8", "", None])
    def test_exact_filters_of_another_hash_or_none_conflict_with_everything(
        self, ours: str | None, theirs: str | None
    ) -> None:
        """The same key may have any two hashes then, so filters that share no hash prove nothing."""

        def hashed(made: Transaction, key_hash: str | None) -> Transaction:
            made.transaction_properties.pop(KEY_HASH)
            if key_hash is not None:
                made.transaction_properties[KEY_HASH] = key_hash
            return made

        by_key, other, changing = self.inserting(1), self.inserting(2), update(fragment(1, deleted=1))
        changing.transaction_properties[CHANGES] = ""
        by_key.transaction_properties[MERGE] = BY_KEY
        appending = append()
        appending.transaction_properties.update({KEYS: encoded_keys(other.update.inserted_rows), KEY_HASH: BLAKE2B_8})
        by_key, other, appending = hashed(by_key, ours), hashed(other, theirs), hashed(appending, theirs)
        comparable = ours == theirs == BLAKE2B_8
        assert verdict(by_key, other) is (C if comparable else R)
        assert verdict(by_key, appending) is (C if comparable else R)
        assert verdict(by_key, changing) is (C if ours == BLAKE2B_8 else R)
        nothing = self.inserting()
        nothing.update.inserted_rows.ClearField("exact")
        assert verdict(hashed(nothing, ours), other) is (C if comparable else R)

    def test_bloom_filters_are_lances_own_and_need_no_name(self) -> None:
        def inserting(bits: bytes) -> Transaction:
            made = self.inserting()
            made.transaction_properties.pop(KEY_HASH)
            made.update.inserted_rows.bloom.bitmap = bits * 32768
            return made

        assert verdict(inserting(b"\1"), inserting(b"\2")) is C
        assert verdict(inserting(b"\3"), inserting(b"\2")) is R
        assert verdict(inserting(b"\1"), self.inserting(2)) is R

    def test_over_an_update_without_filter(self) -> None:
        assert verdict(self.inserting(1), update(fragment(1, deleted=1))) is R

    def test_over_an_update_that_inserts_no_row(self) -> None:
        def changing(fields: str) -> Transaction:
            made = update(fragment(1, deleted=1))
            made.transaction_properties[CHANGES] = fields
            return made

        by_key = self.inserting(1, 2)
        by_key.transaction_properties[MERGE] = BY_KEY
        assert verdict(by_key, changing("1,2")) is C
        assert verdict(by_key, changing("")) is C
        assert verdict(by_key, changing("0,1")) is R, "it may have given a row one of the keys"
        assert verdict(by_key, changing("of another writer")) is R
        assert verdict(self.inserting(1, 2), changing("1,2")) is R, "it may depend on rows with other keys"
        named = self.inserting(2, 3)
        named.transaction_properties[CHANGES] = ""
        assert verdict(by_key, named) is R, "the keys that it names count"
        on_the_same_row = update(fragment(0, deleted=1))
        on_the_same_row.transaction_properties[CHANGES] = "1"
        by_key.update.removed_fragment_ids.append(0)
        assert verdict(by_key, on_the_same_row) is R

    def test_an_update_without_filter_over_one_with(self) -> None:
        assert verdict(update(fragment(1, deleted=1)), self.inserting(1)) is C

    def test_over_other_keys(self) -> None:
        assert verdict(self.inserting(1, 2), self.inserting(3)) is C

    def test_over_the_same_key(self) -> None:
        assert verdict(self.inserting(1, 2), self.inserting(2, 3)) is R

    def test_over_keys_of_other_columns(self) -> None:
        assert verdict(self.inserting(1), self.inserting(2, fields=(1,))) is R

    def test_other_keys_do_not_excuse_the_same_rows(self) -> None:
        ours, theirs = self.inserting(1), self.inserting(2)
        for one in (ours, theirs):
            one.update.removed_fragment_ids.append(0)
        assert verdict(ours, theirs) is R


class TestGenerations:
    """`mem_wal_generation`: a MemWAL region is merged once for each generation."""

    @pytest.mark.parametrize(
        ("ours", "theirs", "wanted"),
        [((1, 5), (1, 10), I), ((1, 10), (1, 10), I), ((1, 10), (1, 5), R), ((1, 5), (2, 9), C)],
    )
    def test_by_region_and_generation(self, ours: tuple[int, int], theirs: tuple[int, int], wanted: Verdict) -> None:
        updated = update(merged_generations=[generation(*theirs)])
        assert verdict(merged(ours), merged(theirs)) is wanted
        assert verdict(merged(ours), updated) is wanted
        assert verdict(update(merged_generations=[generation(*ours)]), merged(theirs)) is wanted
        assert verdict(update(merged_generations=[generation(*ours)]), updated) is wanted
        assert verdict(merged(ours), create_index(samples.mem_wal_index(1, generation(*theirs)))) is wanted

    def test_over_an_ordinary_index(self) -> None:
        assert verdict(merged((1, 5)), create_index(index(1))) is C

    def test_the_mem_wal_index_takes_in_what_was_merged(self) -> None:
        assert verdict(create_index(samples.mem_wal_index(1)), merged((1, 5))) is B
        assert verdict(create_index(index(1)), merged((1, 5))) is I

    def test_the_mem_wal_index_depends_on_the_schema(self) -> None:
        change = merge(*READ.fields)
        assert verdict(create_index(samples.mem_wal_index(1)), change) is R
        assert verdict(change, create_index(samples.mem_wal_index(1))) is R


class TestNullability:
    """`nullability`: rows that were written before a column became required may lack it."""

    REQUIRED = (column(0), column(1), column(2, nullable=False))

    @pytest.mark.parametrize("writing", [append(), update(fragment(1, deleted=1)), replacement(0, 1)])
    def test_a_column_that_becomes_required(self, writing: Transaction) -> None:
        assert verdict(writing, project(*self.REQUIRED)) is R
        assert verdict(project(*self.REQUIRED), writing) is R

    @pytest.mark.parametrize("writing", [append(), update(fragment(1, deleted=1))])
    def test_a_column_that_goes(self, writing: Transaction) -> None:
        assert verdict(writing, project(column(0), column(1))) is C
        assert verdict(project(column(0), column(1)), writing) is C

    def test_a_column_that_is_added(self) -> None:
        assert verdict(append(), merge(*READ.fields, column(3))) is C
        assert verdict(append(), merge(*READ.fields, column(3, nullable=False))) is R

    def test_a_required_child_of_a_new_parent_requires_nothing(self) -> None:
        assert verdict(append(), merge(*READ.fields, column(3), column(4, nullable=False, parent=3))) is C

    def test_a_required_child_of_a_known_parent(self) -> None:
        assert verdict(append(), merge(*READ.fields, column(4, nullable=False, parent=0))) is R

    def test_what_was_required_before_may_stay_so(self) -> None:
        before = samples.manifest(columns=[column(0, nullable=False)])
        theirs = footprint_of_theirs(
            project(column(0, nullable=False)), before=before, after=samples.manifest(version=6), indices=[]
        )
        assert verdict(append(), theirs) is C

    def test_without_the_schema_before_the_writer_is_believed(self) -> None:
        after = samples.manifest(version=6)
        for preserves, wanted in ((True, C), (False, R)):
            theirs = footprint_of_theirs(project(column(0), preserves=preserves), before=None, after=after, indices=[])
            assert verdict(append(), theirs) is wanted
            assert verdict(project(column(0), preserves=preserves), append(), read=None) is wanted

    def test_a_column_that_is_cast(self) -> None:
        """`appended_before_cast`: readers would find nulls in place of the values that were written before."""
        cast = merge(column(0), column(1), column(3))
        assert verdict(append(), cast) is R
        theirs = footprint_of_theirs(cast, before=None, after=samples.manifest(version=6), indices=[])
        assert verdict(append(), theirs) is R

    def test_a_delete_writes_no_values(self) -> None:
        assert verdict(DELETES_OF_0, project(*self.REQUIRED)) is C


class TestDataReplacement:
    def test_of_a_fragment_that_is_gone(self) -> None:
        assert verdict(replacement(0, 1), delete(removed=(0,))) is I
        assert verdict(replacement(0, 1), update(removed_fragment_ids=[0])) is I

    def test_of_a_field_that_was_rewritten_in_place(self) -> None:
        rewritten = update(fragment(0, name="other"), fields_modified=[1], update_mode=Transaction.REWRITE_COLUMNS)
        assert verdict(replacement(0, 1), rewritten) is R
        assert verdict(replacement(0, 2), rewritten) is C

    def test_inserts_beside_columns_rewritten_in_place_moved_no_row(self) -> None:
        rewritten = update(
            fragment(0, name="other"),
            fields_modified=[1],
            new_fragments=[fragment(0, name="new")],
            update_mode=Transaction.REWRITE_COLUMNS,
        )
        assert verdict(replacement(0, 2), rewritten) is C

    def test_of_rows_that_moved(self) -> None:
        moved = update(fragment(0, deleted=1), new_fragments=[fragment(0, name="new")])
        assert verdict(replacement(0, 1), moved) is R
        assert verdict(replacement(1, 1), moved) is C

    @pytest.mark.parametrize(
        ("ours", "theirs", "wanted"),
        [((0, 0, 1), (0, 2, 3), C), ((0, 0, 1), (0, 0, 1), R), ((0, 0, 1), (0, 1, 2), R), ((0, 0, 1), (1, 0, 1), C)],
    )
    def test_beside_another(self, ours: tuple[int, ...], theirs: tuple[int, ...], wanted: Verdict) -> None:
        assert verdict(replacement(*ours), replacement(*theirs)) is wanted

    def test_of_a_column_that_was_dropped(self) -> None:
        kept = (column(0), column(1))
        assert verdict(replacement(0, 2), project(*kept, preserves=True)) is I
        assert verdict(replacement(0, 2), project(*kept)) is R
        assert verdict(replacement(0, 1), project(*kept)) is C

    def test_columns_that_were_rewritten_in_place_must_still_be_there(self) -> None:
        kept = (column(0), column(1))
        assert verdict(update(fragment(0), fields_modified=[2]), project(*kept)) is R
        assert verdict(update(fragment(0), fields_modified=[1]), project(*kept)) is C

    def test_a_tombstone_is_no_column_that_could_be_dropped(self) -> None:
        assert verdict(replacement(0, 1, -2), project(*READ.fields)) is C


class TestConfigAndMetadata:
    @pytest.mark.parametrize(
        ("ours", "theirs", "wanted"),
        [
            ({"a": "1"}, {"a": "2"}, I),
            ({"a": "1"}, {"a": None}, I),
            ({"a": None}, {"a": "1"}, I),
            ({"a": None}, {"a": None}, C),
            ({"a": "1"}, {"b": "1"}, C),
        ],
    )
    def test_config_by_key(self, ours: dict[str, str | None], theirs: dict[str, str | None], wanted: Verdict) -> None:
        first, second = (config(config_updates=samples.updates(one)) for one in (ours, theirs))
        assert verdict(first, second) is wanted

    def test_an_overwrite_sets_config_too(self) -> None:
        overwrite = transaction(overwrite=Transaction.Overwrite(config_upsert_values={"a": "1"}))
        assert verdict(overwrite, overwrite) is I
        assert verdict(overwrite, config(config_updates=samples.updates({"a": None}))) is I
        assert verdict(config(config_updates=samples.updates({"a": None})), overwrite) is I
        assert verdict(config(config_updates=samples.updates({"b": "1"})), overwrite) is C

    def test_an_overwrite_takes_the_schema_away_that_metadata_was_for(self) -> None:
        overwrite = transaction(overwrite=Transaction.Overwrite())
        assert verdict(config(schema_metadata_updates=samples.updates({})), overwrite) is I
        assert verdict(config(field_metadata_updates={0: samples.updates({"a": "1"})}), overwrite) is I

    def test_schema_metadata_has_one_writer_at_a_time(self) -> None:
        first = config(schema_metadata_updates=samples.updates({"a": "1"}))
        second = config(schema_metadata_updates=samples.updates({"b": "1"}))
        assert verdict(first, second) is I

    def test_field_metadata_by_field(self) -> None:
        first, same, other = (
            config(field_metadata_updates={number: samples.updates({"a": "1"})}) for number in (0, 0, 1)
        )
        assert verdict(first, same) is I
        assert verdict(first, other) is C

    def test_table_metadata_by_key_or_as_a_whole(self) -> None:
        a = config(table_metadata_updates=samples.updates({"a": "1"}))
        b = config(table_metadata_updates=samples.updates({"b": "1"}))
        whole = config(table_metadata_updates=samples.updates({"c": "1"}, replace=True))
        cleared = config(table_metadata_updates=samples.updates({}, replace=True))
        assert verdict(a, b) is C
        assert verdict(a, a) is I
        for one in (a, whole, cleared):
            assert verdict(one, whole) is I
            assert verdict(cleared, one) is I
        assert verdict(whole, config(config_updates=samples.updates({"a": "1"}))) is C

    def test_the_queues_own_entries_are_in_nobodys_way(self) -> None:
        own = config(table_metadata_updates=samples.updates({"committerd.position": "{}"}))
        whole = config(table_metadata_updates=samples.updates({"c": "1"}, replace=True))
        assert verdict(whole, own) is C
        assert verdict(own, own) is C

    @pytest.mark.parametrize(
        "metadata",
        [
            config(schema_metadata_updates=samples.updates({"a": "1"})),
            config(field_metadata_updates={0: samples.updates({}, replace=True)}),
        ],
    )
    def test_metadata_beside_a_whole_schema(self, metadata: Transaction) -> None:
        change, restore = merge(*READ.fields), transaction(restore=Transaction.Restore(version=1))
        assert verdict(change, metadata) is verdict(metadata, change) is R
        assert verdict(restore, metadata) is verdict(metadata, restore) is I

    def test_metadata_that_changes_nothing(self) -> None:
        nothing = config(schema_metadata_updates=samples.updates({}))
        assert verdict(merge(*READ.fields), nothing) is C


class TestBases:
    @staticmethod
    def adding(number: int, name: str | None, path: str) -> Transaction:
        bases = Transaction.UpdateBases()
        bases.new_bases.add(id=number, name=name, path=path)
        return transaction(update_bases=bases)

    def test_ids_names_and_paths(self) -> None:
        ours = self.adding(1, "n", "/p")
        assert verdict(ours, self.adding(1, "m", "/q")) is I
        assert verdict(ours, self.adding(2, "n", "/q")) is I
        assert verdict(ours, self.adding(2, "m", "/p")) is I
        assert verdict(ours, self.adding(2, "m", "/q")) is C

    def test_what_is_not_given_does_not_clash(self) -> None:
        assert verdict(self.adding(0, None, "/p"), self.adding(0, None, "/q")) is C


def test_the_two_footprints_are_only_looked_at() -> None:
    ours = footprint_of_ours(DELETES_OF_0, READ)
    assert check(ours, 6, replace(ours)).verdict is B
    assert ours.kind is Kind.DELETE
