"""Rules about indices: what concurrent operations remove from an index while it is built, and which parts count."""

from __future__ import annotations

from committerd_common.index_details import pack_details
from committerd_common.messages import FragmentReuseIndexDetails, Transaction
from tests.lance import samples
from tests.lance.operations import B, C, I, R, create_index, merge, project, replacement, rewrite, update, verdict
from tests.lance.samples import column, fragment, index


class TestIndices:
    def test_of_one_name(self) -> None:
        assert verdict(create_index(index(1, name="x")), create_index(index(2, name="x"))) is R
        assert verdict(create_index(index(1, name="x")), create_index(index(2, name="y"))) is C

    def test_system_indices_count_too(self) -> None:
        assert verdict(create_index(samples.mem_wal_index(1)), create_index(samples.mem_wal_index(2))) is R
        assert verdict(create_index(samples.reuse_index(1)), create_index(samples.reuse_index(2))) is R

    def test_a_segment_for_an_index_that_was_dropped(self) -> None:
        segment, drop = create_index(index(1, name="x")), create_index(removed=(index(9, name="x"),))
        assert verdict(segment, drop) is R
        assert verdict(drop, segment) is R

    def test_a_replacement_of_an_index_that_was_dropped(self) -> None:
        replaced = create_index(index(1, name="x"), removed=(index(9, name="x"),))
        drop = create_index(removed=(index(9, name="x"),))
        assert verdict(replaced, drop) is R
        assert verdict(drop, replaced) is R

    def test_an_index_replaced_under_another_name(self) -> None:
        replaced = create_index(index(1, name="y"), removed=(index(8, name="y"), index(9, name="x")))
        drop = create_index(removed=(index(9, name="y"),))
        assert verdict(replaced, drop) is R

    def test_an_index_that_a_rewrite_has_rewritten_is_dropped_and_not_replaced(self) -> None:
        rewritten = rewrite(0, rewritten=(9,))
        assert verdict(create_index(removed=(index(9, name="x"),)), rewritten) is C
        replaced = create_index(index(1, name="x", fragments=(5,)), removed=(index(9, name="x"),))
        assert verdict(replaced, rewritten) is R

    def test_replacements_of_different_segments(self) -> None:
        ours = create_index(index(1, name="x"), removed=(index(8, name="x"),))
        theirs = create_index(removed=(index(9, name="x"),))
        assert verdict(ours, theirs) is C

    def test_on_a_column_that_was_dropped(self) -> None:
        kept = (column(0), column(1))
        assert verdict(create_index(index(1, fields=[2])), project(*kept)) is I
        assert verdict(create_index(index(1, fields=[0, 2])), project(*kept)) is I
        assert verdict(create_index(index(1, fields=[1])), project(*kept)) is C
        assert verdict(create_index(removed=(index(9, fields=[2]),)), project(*kept)) is C
        assert verdict(create_index(index(1, fields=[2])), merge(*kept)) is R
        assert verdict(create_index(index(1, fields=[1])), merge(*kept)) is C

    def test_two_drops(self) -> None:
        drop = create_index(removed=(index(9, name="x"),))
        assert verdict(drop, drop) is C

    def test_what_lance_4_committed_is_judged_as_it_would(self) -> None:
        segment, drop = create_index(index(1, name="x")), create_index(removed=(index(9, name="x"),))
        assert verdict(segment, drop, writer="4.0.0") is C
        assert verdict(segment, segment, writer="4.0.0") is R
        assert verdict(segment, drop, writer="odd") is R

    def test_on_a_replaced_field(self) -> None:
        assert verdict(create_index(index(1, fields=[2])), replacement(0, 2)) is R
        assert verdict(create_index(index(1, fields=[2])), replacement(0, 0)) is C
        assert verdict(replacement(0, 2), create_index(index(1, fields=[2]))) is R

    def test_over_columns_rewritten_in_place(self) -> None:
        rewritten = update(fragment(0, name="other"), fields_modified=[1], update_mode=Transaction.REWRITE_COLUMNS)
        assert verdict(create_index(index(1, fields=[1], fragments=[0])), rewritten) is B
        assert verdict(create_index(index(1, fields=[1], fragments=None)), rewritten) is B
        assert verdict(create_index(index(1, fields=[1], fragments=[1])), rewritten) is C
        assert verdict(create_index(index(1, fields=[0], fragments=[0])), rewritten) is C


class TestRewrites:
    def test_of_a_fragment_that_a_new_index_covers(self) -> None:
        for made, after, before in (
            (index(1, fragments=[0]), B, R),
            (index(1, fragments=[1]), C, C),
            (index(1, fragments=None), R, R),
        ):
            assert verdict(create_index(made), rewrite(0)) is after
            assert verdict(rewrite(0), create_index(made)) is before

    def test_that_defers_its_indices_passes_an_index_of_whole_groups(self) -> None:
        covering = (index(9, fragments=[0, 1]),)
        for fragments, wanted in (([0, 1], C), ([2], C), ([0], R), (None, R)):
            made = create_index(index(1, fragments=fragments))
            assert verdict(rewrite(0, 1), made, read_indices=covering) is wanted

    def test_that_rewrites_its_indices_does_not_defer_them(self) -> None:
        covering = (index(9, fragments=[0, 1]),)
        made = create_index(index(1, fragments=[0, 1]))
        assert verdict(rewrite(0, 1, rewritten=(9,)), made, read_indices=covering) is R

    def test_an_index_that_nobody_can_rewrite_defers_nothing(self) -> None:
        zones = index(9, fragments=[0, 1])
        zones.index_details.type_url = "/lance.table.ZoneMapIndexDetails"
        for covering in (zones, samples.reuse_index(8, ([0], [1])), index(9, fragments=None), index(9, fragments=[5])):
            made = create_index(index(1, fragments=[0, 1]))
            assert verdict(rewrite(0, 1), made, read_indices=(covering,)) is R

    def test_in_a_table_with_stable_row_ids_nothing_is_deferred(self) -> None:
        stable = samples.manifest(fragment(0), stable=True)
        made = create_index(index(1, fragments=[0]))
        assert verdict(rewrite(0), made, read=stable, read_indices=(index(9, fragments=[0]),)) is R

    def test_two_that_defer(self) -> None:
        reuse = (samples.reuse_index(8, ([1], [5])),)
        covering = (index(9, fragments=[0, 1]),)
        assert verdict(rewrite(0), rewrite(1), read_indices=covering, indices=reuse) is R
        assert verdict(rewrite(0), rewrite(1), indices=reuse) is C
        assert verdict(rewrite(0), rewrite(1), read_indices=covering) is C

    def test_readers_follow_an_index_that_is_older_than_the_reuse_entry(self) -> None:
        reuse = (samples.reuse_index(8, ([0], [5]), version=7),)
        for version, wanted in ((6, C), (7, R)):
            made = create_index(index(1, fragments=[0], version=version))
            assert verdict(made, rewrite(0), indices=reuse) is wanted

    def test_an_ngram_index_is_not_followed(self) -> None:
        reuse = (samples.reuse_index(8, ([0], [5]), version=7),)
        made = index(1, fragments=[0])
        made.index_details.type_url = "/lance.table.NGramIndexDetails"
        assert verdict(create_index(made), rewrite(0), indices=reuse) is R

    def test_of_an_index_that_a_new_one_replaces(self) -> None:
        for old, wanted in ((7, R), (8, C)):
            made = create_index(index(1, fragments=[5]), removed=(index(7, fragments=[5]),))
            assert verdict(made, rewrite(0, rewritten=(old,))) is wanted

    def test_a_reuse_entry_of_another_rewrite_says_nothing(self) -> None:
        reuse = (index(7), samples.reuse_index(8, ([2], [5]), version=7))
        assert verdict(create_index(index(1, fragments=[0])), rewrite(0), indices=reuse) is B

    def test_a_reuse_entry_in_a_file_is_dated_by_its_index(self) -> None:
        kept = samples.reuse_index(8, version=7)
        details = FragmentReuseIndexDetails()
        details.external.path = "details.binpb"
        kept.index_details.CopyFrom(pack_details(details))
        for version, wanted in ((6, C), (7, R)):
            made = create_index(index(1, fragments=[0], version=version))
            assert verdict(made, rewrite(0), indices=(kept,)) is wanted

    def test_the_reuse_index_itself_takes_their_entry(self) -> None:
        reuse = (samples.reuse_index(8, ([0], [5])),)
        trimmed = create_index(samples.reuse_index(1), removed=(samples.reuse_index(8),))
        assert verdict(trimmed, rewrite(0), indices=reuse) is B
        assert verdict(create_index(samples.reuse_index(1)), rewrite(0), indices=reuse) is I

    def test_over_a_reuse_index(self) -> None:
        trimmed = create_index(samples.reuse_index(1), removed=(samples.reuse_index(8),))
        assert verdict(rewrite(0), trimmed) is C
        assert verdict(rewrite(0), create_index(samples.reuse_index(1), index(2))) is I
