"""The conflict grid against a second one, written independently in another notation."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from committerd.lance.conflicts import grid, rules
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.conflicts.grid import (
    MATRIX,
    NOTHING_FOUND,
    Matrix,
    Row,
    Unreadable,
    Verdict,
    VersionVerdict,
    check,
    compared,
    reason,
    rule,
    worst,
)
from committerd.lance.format.kind import Kind
from committerd.lance.transactions.transaction import footprint_of_ours, footprint_of_theirs
from committerd_common.messages import DataFragment, Transaction
from tests.lance import samples

ORDER = [
    Kind.APPEND, Kind.DELETE, Kind.UPDATE, Kind.OVERWRITE, Kind.CREATE_INDEX, Kind.REWRITE, Kind.MERGE, Kind.RESTORE,
    Kind.RESERVE_FRAGMENTS, Kind.PROJECT, Kind.UPDATE_CONFIG, Kind.DATA_REPLACEMENT, Kind.UPDATE_MEM_WAL_STATE,
    Kind.CLONE, Kind.UPDATE_BASES,
]  # fmt: skip

# Two letters: the verdict where both touch different things, and where they touch the same fragment, field, index,
# key, region or base. C compatible, B rebasable, R retryable, I incompatible.
#            App Del Upd Ovw Idx Rew Mrg Rst Rsv Prj Cfg Dat Wal Cln Bas
GRID = """
append       CC  CC  CC  II  CC  CC  CC  II  CC  CC  CC  CC  II  CC  CC
delete       CC  CB  CB  II  CC  CR  RR  II  CC  CC  CC  CR  II  CC  CC
update       CC  CB  CB  II  CC  CR  RR  II  CC  CR  CC  CR  CC  CC  CC
overwrite    CC  CC  CC  RI  CC  CC  CC  CC  CC  CC  CI  CC  II  CC  CC
create_index CC  CC  CB  II  CR  CB  CC  II  CC  CI  CC  CR  II  CC  CC
rewrite      CC  CR  CR  II  CR  CR  RR  II  CC  CC  CC  CR  CC  CC  CC
merge        RR  RR  RR  II  CC  RR  RR  II  CC  II  CC  RR  II  CC  CC
restore      CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  II  CC  CC
reserve      CC  CC  CC  II  CC  CC  CC  II  CC  CC  CC  CC  CC  CC  CC
project      CC  CC  CC  II  CC  CC  RR  II  CC  RR  CC  CC  II  CC  CC
config       CC  CC  CC  CI  CC  CC  CC  CC  CC  CC  CI  CC  CC  CC  CC
data         CC  CC  CR  II  CR  CR  RR  II  CC  CI  CC  CR  II  CC  CC
wal          II  II  CC  II  CC  CC  II  II  CC  II  CC  II  CI  II  CC
clone        CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  CC
bases        CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  CC  CI
"""

LETTERS = {
    "C": Verdict.COMPATIBLE,
    "B": Verdict.REBASABLE,
    "R": Verdict.RETRYABLE,
    "I": Verdict.INCOMPATIBLE,
}

READ = samples.manifest(samples.fragment(0), samples.fragment(1))


def cells() -> list[tuple[Kind, Kind, str, Verdict]]:
    lines = [line.split() for line in GRID.strip().splitlines()]
    return [
        (ours, theirs, where, LETTERS[letters[place]])
        for ours, (_, *row) in zip(ORDER, lines, strict=True)
        for theirs, letters in zip(ORDER, row, strict=True)
        for place, where in enumerate(("disjoint", "overlapping"))
    ]


def deleted(number: int) -> DataFragment:
    return samples.fragment(number, deleted=1)


def sample(kind: Kind, place: int) -> Transaction:
    """An operation that touches fragment, field, index, key, region and base `place`."""
    match kind:
        case Kind.APPEND:
            return samples.transaction(append=Transaction.Append(fragments=[samples.fragment(0, name="new")]))
        case Kind.DELETE:
            return samples.transaction(delete=Transaction.Delete(updated_fragments=[deleted(place)]))
        case Kind.UPDATE:
            return samples.transaction(
                update=Transaction.Update(
                    updated_fragments=[deleted(place)],
                    new_fragments=[samples.fragment(0, name="new")],
                    fields_modified=[place],
                )
            )
        case Kind.OVERWRITE:
            return samples.transaction(overwrite=Transaction.Overwrite(config_upsert_values={f"k{place}": "v"}))
        case Kind.CREATE_INDEX:
            made = samples.index(place, fields=[place], fragments=[place])
            return samples.transaction(create_index=Transaction.CreateIndex(new_indices=[made]))
        case Kind.REWRITE:
            group = Transaction.Rewrite.RewriteGroup(
                old_fragments=[samples.fragment(place)], new_fragments=[samples.fragment(9)]
            )
            return samples.transaction(rewrite=Transaction.Rewrite(groups=[group]))
        case Kind.MERGE:
            return samples.transaction(merge=Transaction.Merge(schema=READ.fields))
        case Kind.RESTORE:
            return samples.transaction(restore=Transaction.Restore(version=1))
        case Kind.RESERVE_FRAGMENTS:
            return samples.transaction(reserve_fragments=Transaction.ReserveFragments(num_fragments=1))
        case Kind.PROJECT:
            kept = [field for field in READ.fields if field.id != place]
            return samples.transaction(project=Transaction.Project(schema=kept, preserves_nullability=True))
        case Kind.UPDATE_CONFIG:
            return samples.transaction(
                update_config=Transaction.UpdateConfig(config_updates=samples.updates({f"k{place}": "v"}))
            )
        case Kind.DATA_REPLACEMENT:
            group_of_data = Transaction.DataReplacementGroup(
                fragment_id=place, new_file=samples.data_file("new", [place])
            )
            return samples.transaction(data_replacement=Transaction.DataReplacement(replacements=[group_of_data]))
        case Kind.UPDATE_MEM_WAL_STATE:
            return samples.transaction(
                update_mem_wal_state=Transaction.UpdateMemWalState(merged_generations=[samples.generation(place, 5)])
            )
        case Kind.CLONE:
            return samples.transaction(clone=Transaction.Clone(ref_path="/t"))
        case Kind.UPDATE_BASES:
            bases = Transaction.UpdateBases()
            bases.new_bases.add(id=place + 1, name=f"n{place}", path=f"/b{place}")
            return samples.transaction(update_bases=bases)


def ours_of(staged: Transaction) -> Footprint:
    return footprint_of_ours(staged, READ)


def theirs_of(committed: Transaction) -> Footprint:
    return footprint_of_theirs(committed, before=READ, after=samples.manifest(version=6), indices=[])


@pytest.mark.parametrize(
    ("ours", "theirs", "where", "wanted"), [pytest.param(*one, id=f"{one[0]}-{one[1]}-{one[2]}") for one in cells()]
)
def test_cell(ours: Kind, theirs: Kind, where: str, wanted: Verdict) -> None:
    place = 0 if where == "overlapping" else 1
    checked = check(ours_of(sample(ours, 0)), 6, theirs_of(sample(theirs, place)))
    assert checked.verdict is wanted
    assert checked.theirs is theirs


def test_rows_and_columns_are_the_operations() -> None:
    operations = [field.name for field in Transaction.DESCRIPTOR.oneofs_by_name["operation"].fields]
    assert sorted(Kind) == sorted(operations)
    assert set(Matrix._fields) == set(Row._fields) == set(operations)


def test_every_rule_says_what_it_is_and_where_from() -> None:
    for row in MATRIX:
        for cell in row:
            assert reason(cell.__name__).endswith(".")
            if cell.__name__ not in ("compatible", "retryable", "incompatible"):
                assert "Lance" in (cell.__doc__ or "") or "pylance" in (cell.__doc__ or "")


def test_the_page_about_conflicts_has_the_table_and_every_rule() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "conflicts.md").read_text()
    always = ("compatible", "retryable", "incompatible")
    for ours, row in zip(MATRIX._fields, MATRIX, strict=True):
        line = next(line for line in page.splitlines() if line.startswith(f"| {ours} | "))
        _, _, by_rule, retryable, incompatible, _ = (part.strip() for part in line.split("|"))
        groups = [*by_rule.split("; "), f"{retryable}: `retryable`", f"{incompatible}: `incompatible`"]
        listed = dict.fromkeys(Row._fields, "compatible")
        for group in groups:
            kinds, _, name = group.partition(": ")
            listed |= {kind: name.strip("`") for kind in kinds.split(", ") if kind}
        assert listed == {theirs: cell.__name__ for theirs, cell in zip(Row._fields, row, strict=True)}
        for cell in row:
            assert cell.__name__ in always or f"\n| `{cell.__name__}` | {reason(cell.__name__)} |\n" in page


def test_the_page_explains_every_rule_that_lets_more_pass_than_lance() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "conflicts.md").read_text()
    section = page.partition("## Where committerd lets more pass")[2].partition("\n\nA Delete that")[0]
    explained = set()
    for line in section.splitlines():
        if line.startswith("| ") and " over " in line and "ours over theirs" not in line:
            pairs, name = line.split(" | ")[:2]
            for pair in pairs.strip("| ").split(", "):
                ours, theirs = map(Kind, pair.split(" over "))
                assert f"`{rule(ours, theirs).__name__}`" == name
                explained.add((ours, theirs))
    own = {"same_row", "same_row_or_key", "moved_rows", "late_deletions", "appended_key", "indexed_fragment_rewritten"}
    assert explained == {(o, t) for o in Kind for t in Kind if rule(o, t).__name__ in own}


def test_a_version_without_transaction_is_retried() -> None:
    checked = check(ours_of(sample(Kind.APPEND, 0)), 6, Unreadable.NO_TRANSACTION)
    assert (checked.verdict, checked.rule, checked.theirs) == (Verdict.RETRYABLE, "no_transaction", None)
    assert reason(checked.rule)


def test_an_operation_that_nobody_knows_stops_everything() -> None:
    for kind in Kind:
        checked = check(ours_of(sample(kind, 0)), 6, Unreadable.UNKNOWN_OPERATION)
        assert (checked.verdict, checked.rule) == (Verdict.INCOMPATIBLE, "unknown_operation")


def test_an_operation_with_more_than_we_know_is_retried() -> None:
    checked = check(ours_of(sample(Kind.CLONE, 0)), 6, Unreadable.UNKNOWN_FIELDS)
    assert (checked.verdict, checked.rule) == (Verdict.RETRYABLE, "unknown_fields")


def test_a_rule_that_nobody_has_says_nothing() -> None:
    assert reason("no such rule") == ""


def test_the_earliest_of_the_worst_decides() -> None:
    history = [
        VersionVerdict(version=number, theirs=Kind.APPEND, rule="x", verdict=verdict)
        for number, verdict in enumerate(
            (Verdict.REBASABLE, Verdict.RETRYABLE, Verdict.COMPATIBLE, Verdict.RETRYABLE), 6
        )
    ]
    decided = worst(history)
    assert decided is not None
    assert (decided.version, decided.verdict) == (7, Verdict.RETRYABLE)
    assert worst([]) is None


theirs_strategy = st.builds(
    lambda kind, place: theirs_of(sample(kind, place)), st.sampled_from(Kind), st.integers(0, 1)
)


@given(st.sampled_from(Kind), st.lists(theirs_strategy, min_size=1, max_size=4))
def test_the_order_of_the_history_does_not_matter(kind: Kind, history: list[Footprint]) -> None:
    ours = ours_of(sample(kind, 0))
    verdicts = {
        max(check(ours, version, theirs).verdict for version, theirs in enumerate(order, 6))
        for order in permutations(history)
    }
    assert len(verdicts) == 1


@given(st.sampled_from(Kind), st.lists(theirs_strategy, min_size=1, max_size=5))
def test_more_history_never_makes_a_verdict_better(kind: Kind, history: list[Footprint]) -> None:
    ours = ours_of(sample(kind, 0))
    checked = [check(ours, version, theirs) for version, theirs in enumerate(history, 6)]
    reached = Verdict.COMPATIBLE
    for count in range(1, len(checked) + 1):
        decided = worst(checked[:count])
        assert decided is not None
        assert decided.verdict >= reached
        reached = decided.verdict


def test_a_cell_is_found_by_row_and_column() -> None:
    found = rule(Kind.UPDATE, Kind.REWRITE)
    assert found is grid.mov is rules.moved_rows
    assert "row `update`, column `Rewr`: `mov`, which is short for `rules.moved_rows`" in " ".join(
        (grid.__doc__ or "").split()
    )


def test_what_was_found_goes_on_from_what_was_found_before() -> None:
    ours = Footprint(kind=Kind.DELETE, fragments=frozenset({1}))
    append, rewrite = Footprint(kind=Kind.APPEND), Footprint(kind=Kind.REWRITE, fragments=frozenset({1}))
    first = compared(ours, [(5, append)])
    assert (first.through, first.conflicts, first.deciding) == (5, (), check(ours, 5, append))
    assert compared(ours, [], first) is first
    both = compared(ours, [(6, rewrite), (7, append)], first)
    assert [one.version for one in both.checked] == [5, 6, 7]
    assert [one.version for one in both.conflicts] == [6]
    assert both.deciding == check(ours, 6, rewrite)
    assert both == compared(ours, [(5, append), (6, rewrite), (7, append)])
    assert compared(ours, []) is NOTHING_FOUND


def test_only_conflicts_are_listed_if_nobody_asks_for_more() -> None:
    ours = Footprint(kind=Kind.DELETE, fragments=frozenset({1}))
    append, rewrite = Footprint(kind=Kind.APPEND), Footprint(kind=Kind.REWRITE, fragments=frozenset({1}))
    some = compared(ours, [(number, append) for number in range(5, 8)], lists_all=False)
    assert (some.through, some.checked, some.conflicts, some.deciding) == (7, (), (), None)
    both = compared(ours, [(8, rewrite), (9, Unreadable.UNKNOWN_OPERATION), (10, append)], some, lists_all=False)
    assert (both.through, both.checked) == (10, ())
    assert [one.version for one in both.conflicts] == [8, 9]
    assert both.deciding == check(ours, 9, Unreadable.UNKNOWN_OPERATION)
