"""The conflict grid: may our transaction be committed after another one that was committed since its read version?

The grid has a cell for each pair of operations: ours are the rows, theirs the columns. A cell is a rule, which is a
function of the two footprints; its docstring says when they conflict, and names the source. `Update over Rewrite` is
row `update`, column `Rewr`: `mov`, which is short for `rules.moved_rows`.

If Lance 4.0.0 and 14.0.2 give different verdicts, the stricter one counts, and the rule says so. A stricter verdict
only makes a writer execute its work again; it never changes what readers see. The worst verdict over all committed
versions counts, so their order doesn't matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from committerd.lance.conflicts import rules
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.conflicts.rules import Rule
from committerd.lance.conflicts.rules import Verdict as Verdict
from committerd.lance.format.kind import Kind


class Row(NamedTuple):
    """The rules for one operation of ours, a cell for each operation of theirs."""

    append: Rule
    delete: Rule
    update: Rule
    overwrite: Rule
    create_index: Rule
    rewrite: Rule
    merge: Rule
    restore: Rule
    reserve_fragments: Rule
    project: Rule
    update_config: Rule
    data_replacement: Rule
    update_mem_wal_state: Rule
    clone: Rule
    update_bases: Rule


class Matrix(NamedTuple):
    """The rows, one for each operation of ours."""

    append: Row
    delete: Row
    update: Row
    overwrite: Row
    create_index: Row
    rewrite: Row
    merge: Row
    restore: Row
    reserve_fragments: Row
    project: Row
    update_config: Row
    data_replacement: Row
    update_mem_wal_state: Row
    clone: Row
    update_bases: Row


# Short names, so that a row of the grid fits on a line.
_ = rules.compatible
R = rules.retryable
X = rules.incompatible
key = rules.appended_key
row = rules.same_row
upd = rules.same_row_or_key
mov = rules.moved_rows
lat = rules.late_deletions
frg = rules.same_fragment
rew = rules.same_fragment_rewritten
nul = rules.nullability
cst = rules.appended_before_cast
upj = rules.updated_column_dropped
ixp = rules.indexed_column_dropped
dpr = rules.replaced_column_dropped
prn = rules.indexed_data_updated
ddl = rules.replaced_fragment_gone
dup = rules.replaced_data_updated
dat = rules.same_data_replaced
fld = rules.indexed_data_replaced
idx = rules.same_index
ixr = rules.indexed_fragment_rewritten
rxi = rules.rewritten_fragment_indexed
mwi = rules.indexed_schema_changed
iwl = rules.mem_wal_index
wal = rules.mem_wal_generation
ovw = rules.overwritten_twice
cfg = rules.same_config_key
ovc = rules.metadata_of_replaced_schema
ucc = rules.same_config_or_metadata
mta = rules.merge_undoes_metadata
mtx = rules.restore_undoes_metadata
bas = rules.same_base

# fmt: off
#                             theirs (already committed)
#   ours                      App  Del  Upd  Ovw  CIdx Rewr Mrge Rest Resv Proj UCfg DRep MemW Clon Base
MATRIX = Matrix(
    append=               Row(_,   _,   _,   X,   _,   _,   cst, X,   _,   nul, _,   _,   X,   _,   _),
    delete=               Row(_,   row, row, X,   _,   mov, R,   X,   _,   _,   _,   frg, X,   _,   _),
    update=               Row(key, row, upd, X,   _,   mov, R,   X,   _,   upj, _,   frg, wal, _,   _),
    overwrite=            Row(_,   _,   _,   ovw, _,   _,   _,   _,   _,   _,   cfg, _,   X,   _,   _),
    create_index=         Row(_,   _,   prn, X,   idx, ixr, mwi, X,   _,   ixp, _,   fld, iwl, _,   _),
    rewrite=              Row(_,   lat, lat, X,   rxi, rew, R,   X,   _,   _,   _,   frg, _,   _,   _),
    merge=                Row(R,   R,   R,   X,   mwi, R,   R,   X,   _,   X,   mta, R,   X,   _,   _),
    restore=              Row(_,   _,   _,   _,   _,   _,   _,   _,   _,   _,   mtx, _,   X,   _,   _),
    reserve_fragments=    Row(_,   _,   _,   X,   _,   _,   _,   X,   _,   _,   _,   _,   _,   _,   _),
    project=              Row(nul, _,   nul, X,   _,   _,   R,   X,   _,   R,   _,   nul, X,   _,   _),
    update_config=        Row(_,   _,   _,   ovc, _,   _,   mta, mtx, _,   _,   ucc, _,   _,   _,   _),
    data_replacement=     Row(_,   ddl, dup, X,   fld, frg, R,   X,   _,   dpr, _,   dat, X,   _,   _),
    update_mem_wal_state= Row(X,   X,   wal, X,   wal, _,   X,   X,   _,   X,   _,   X,   wal, X,   _),
    clone=                Row(_,   _,   _,   _,   _,   _,   _,   _,   _,   _,   _,   _,   _,   _,   _),
    update_bases=         Row(_,   _,   _,   _,   _,   _,   _,   _,   _,   _,   _,   _,   _,   _,   bas),
)
# fmt: on


FOLLOWING = frozenset({mov.__name__, lat.__name__})
"""The names of the rules that are rebased by following rows (`Operation.follow`)."""


@cache
def rule(ours: Kind, theirs: Kind) -> Rule:
    """The rule for two operations. Cached, because a transaction may be compared with a thousand versions."""
    row_of_ours: Row = getattr(MATRIX, ours.value)
    cell: Rule = getattr(row_of_ours, theirs.value)
    return cell


class Unreadable(IntEnum):
    """The reason why a committed version has no footprint, and so no cell to look up."""

    NO_TRANSACTION = 0
    """Its transaction is neither inline nor in a file."""
    UNKNOWN_OPERATION = 1
    """A newer Lance committed an operation that committerd does not know."""
    UNKNOWN_FIELDS = 2
    """A newer Lance committed an operation with fields that committerd does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionVerdict:
    """The result of comparing ours with one committed version."""

    version: int
    theirs: Kind | None
    rule: str
    """The name of the rule in the cell; if there is no cell, the name of an `Unreadable` in lower case."""
    verdict: Verdict


def check(ours: Footprint, version: int, theirs: Footprint | Unreadable) -> VersionVerdict:
    """Compare ours with one committed version.

    A version with an unknown operation is incompatible with everything, as in pylance 14.0.2. For a version that can't
    be read in full the verdict is retryable: the same work, executed again after that version, may pass.
    """
    if isinstance(theirs, Unreadable):
        unknown = theirs is Unreadable.UNKNOWN_OPERATION
        return VersionVerdict(
            version=version,
            theirs=None,
            rule=theirs.name.lower(),
            verdict=Verdict.INCOMPATIBLE if unknown else Verdict.RETRYABLE,
        )
    cell = rule(ours.kind, theirs.kind)
    return VersionVerdict(
        version=version,
        theirs=theirs.kind,
        rule=cell.__name__,
        verdict=cell(ours, theirs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing a transaction with committed versions, in ascending order and without a gap."""

    through: int = 0
    """The last of these versions; 0 = there was none."""
    checked: tuple[VersionVerdict, ...] = ()
    """The results, if they are listed."""
    conflicts: tuple[VersionVerdict, ...] = ()
    """The results whose verdict is not compatible."""
    deciding: VersionVerdict | None = None
    """The result that decides (`worst`); None if all are compatible and not listed."""


NOTHING_FOUND = Comparison()


def compared(
    ours: Footprint,
    committed: Iterable[tuple[int, Footprint | Unreadable]],
    before: Comparison = NOTHING_FOUND,
    *,
    lists_all: bool = True,
) -> Comparison:
    """Compare ours with the versions that follow those of `before`, an earlier comparison of the same footprint.

    `lists_all`: list each result in `checked`. Without it, a version that does not conflict with ours takes next to no
    time and memory.
    """
    checked, conflicts, through = list[VersionVerdict](), list[VersionVerdict](), before.through
    for version, theirs in committed:
        through = version
        if not lists_all and _passes(ours, theirs):
            continue
        one = check(ours, version, theirs)
        checked.append(one)
        if one.verdict is not Verdict.COMPATIBLE:
            conflicts.append(one)
    if through == before.through:
        return before
    return Comparison(
        through=through,
        checked=(*before.checked, *checked) if lists_all else (),
        conflicts=(*before.conflicts, *conflicts) if conflicts else before.conflicts,
        deciding=worst(([before.deciding] if before.deciding else []) + checked),
    )


def passes_all(ours: Footprint, theirs: Iterable[Footprint]) -> bool:
    """Whether ours has no conflict with any of these footprints."""
    return all(_passes(ours, one) for one in theirs)


def _passes(ours: Footprint, theirs: Footprint | Unreadable) -> bool:
    """Whether ours has no conflict with a committed version."""
    if isinstance(theirs, Unreadable):
        return False
    cell = rule(ours.kind, theirs.kind)
    return cell is rules.compatible or cell(ours, theirs) is Verdict.COMPATIBLE


def reason(name: str) -> str:
    """The first paragraph of a rule's docstring, for people; `name` is a `VersionVerdict.rule`."""
    return _REASONS.get(name, "")


def worst(checked: Iterable[VersionVerdict]) -> VersionVerdict | None:
    """The result that decides: of the results with the worst verdict, the result for the lowest version. None for no
    results.
    """
    return max(checked, key=lambda one: (one.verdict, -one.version), default=None)


_REASONS = {
    cell.__name__: (cell.__doc__ or "").partition("\n\n")[0].replace("\n    ", " ")
    for row_of_rules in MATRIX
    for cell in row_of_rules
} | {
    "no_transaction": "What it changed can't be read.",
    "unknown_operation": "A newer Lance committed an operation that committerd doesn't know.",
    "unknown_fields": "A newer Lance committed more than committerd understands.",
}
