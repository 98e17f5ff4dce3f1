"""Deliberate differences from pylance 14.0.2: each has a name and a reason, and is as narrow as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance

from committerd.lance.conflicts.grid import Verdict, VersionVerdict
from committerd_common.messages import Transaction

Facts = dict[str, Any]

UNREADABLE = "unreadable"
"""The difference after which pylance's table is unusable."""
_DANGLING = (("committed", "incompatible"), ("committed", "retryable"))
_UNREADABLE_REASONS = ("fragment_without_files", "column_indices")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one staged transaction on our side."""

    transaction: Transaction
    verdict: str
    reason: str
    message: str
    checked: Sequence[VersionVerdict]

    @property
    def operation(self) -> str:
        return self.transaction.WhichOneof("operation") or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One change, tried on both sides."""

    theirs: Path
    ours: Path
    outcomes: Sequence[Outcome]
    verdicts: Sequence[str]
    """pylance's verdicts about the same transactions."""
    error: str
    """pylance's error, if it refused."""

    @property
    def last(self) -> Outcome:
        return self.outcomes[-1]

    @property
    def last_verdicts(self) -> tuple[str, str]:
        """The verdicts about the last transaction: pylance's and ours."""
        return self.verdicts[-1], self.last.verdict


def of_verdicts(case: Case) -> str | None:
    """The name of the difference that explains why our verdicts are not pylance's; None if none does."""
    return next((name for name, explains in _VERDICTS.items() if explains(case)), None)


def settle(case: Case, theirs: Facts, ours: Facts) -> set[str]:
    """Apply our deliberate differences to pylance's version; return their names."""
    return {name for name, adjust in _VERSIONS.items() if adjust(case, theirs, ours)}


def _worst_wins(case: Case) -> bool:
    """pylance reports the first conflict, from the oldest version on; we report the worst one. Repeating work in vain
    costs more than a final answer.
    """
    if case.last_verdicts != ("retryable", "incompatible"):
        return False
    first = next(one for one in case.last.checked if one.verdict >= Verdict.RETRYABLE)
    # pylance may have found a compaction first, which we pass.
    passed = any(one.theirs == "rewrite" and one.version < first.version for one in case.last.checked)
    return first.verdict is Verdict.RETRYABLE or passed


def _worst_fragment_wins(case: Case) -> bool:
    """As `worst_wins`, within one Update: some of the fragments that a DataReplacement names are gone."""
    if case.last_verdicts != ("retryable", "incompatible"):
        return False
    first = next(one for one in case.last.checked if one.verdict >= Verdict.RETRYABLE)
    return first.rule == "replaced_data_updated" and len(case.last.transaction.data_replacement.replacements) > 1


def _passes_a_compaction(case: Case) -> bool:
    """Rows are followed to where a compaction moved them, late deletes are carried into one, and a new index keeps what
    is left of its coverage, where pylance retries. The outcome says so; `tests/rowlevel` compares the rows.
    """
    met = {case.last.operation, *(str(one.theirs) for one in case.last.checked)}
    return case.last_verdicts == ("retryable", "committed") and "rewrite" in met and bool(case.last.message)


def _ids_are_taken(case: Case) -> bool:
    """A compaction at an old version gives its fragments ids that are taken meanwhile. pylance finds another conflict
    first; here that is none, so the ids decide.
    """
    is_rewrite = case.last.operation == "rewrite"
    return is_rewrite and case.last_verdicts == ("retryable", "error") and case.last.reason == "fragment_id_taken"


def _unreadable(case: Case) -> bool:
    """pylance commits what it then can't read: a fragment without its last data file, or a nested field of format 2.0
    that was cast, so that its parent has a column in another file; or what it can't filter any more: an index on a
    column that is gone. We refuse that.
    """
    ours = case.last
    if ours.operation == "create_index" and case.last_verdicts in _DANGLING:
        return any(
            one.rule in ("indexed_column_dropped", "indexed_schema_changed") and one.verdict >= Verdict.RETRYABLE
            for one in ours.checked
        )
    refused = case.last_verdicts == ("committed", "error") and case.last.reason in _UNREADABLE_REASONS
    return refused and not _is_readable(case.theirs)


def _cast_meanwhile(case: Case) -> bool:
    """pylance commits an Append over a cast of a column, whose values are nulls from then on. We refuse it."""
    rules = {one.rule for one in case.last.checked if one.verdict is Verdict.RETRYABLE}
    return case.last_verdicts == ("committed", "retryable") and rules == {"appended_before_cast"}


def _is_readable(root: Path) -> bool:
    try:
        lance.dataset(str(root)).to_table()
    except (OSError, ValueError):
        return False
    return True


def _deferred_remap(case: Case, theirs: Facts, ours: Facts) -> bool:
    """A compaction that leaves the indices alone adds an entry to the fragment reuse index.

    pylance has it in memory only; the transaction does not contain it.
    """
    if case.last.operation != "rewrite":
        return False
    found, before = _reuse_index(theirs), _reuse_index(ours)
    if found is None or found == before:
        return False
    known = before["frag_reuse"]["versions"] if before else []
    *older, added = found["frag_reuse"]["versions"]
    replaced = {fragment.id for group in case.last.transaction.rewrite.groups for fragment in group.old_fragments}
    if older != known or {old for group in added["groups"] for old, *_ in group["old"]} != replaced:
        return False
    theirs["indices"] = [index for index in theirs["indices"] if index is not found]
    theirs["indices"] += [before] if before else []
    theirs["indices"].sort(key=lambda index: index["name"])
    return True


def _empty_vector_index(case: Case, theirs: Facts, ours: Facts) -> bool:
    """A vector index that covers no fragment any more stays with 14.0.2, and is dropped by 4.0.0 and by us."""
    kept = {index["uuid"] for index in ours["indices"]}
    fragments = {fragment["id"] for fragment in ours["fragments"]}
    dropped = [
        index
        for index in theirs["indices"]
        if index["uuid"] not in kept
        and index["details"].endswith("VectorIndexDetails")
        and not fragments & set(index["fragment_bitmap"])
    ]
    theirs["indices"] = [index for index in theirs["indices"] if index not in dropped]
    return bool(dropped)


def _schema_change_keeps_metadata(case: Case, theirs: Facts, ours: Facts) -> bool:
    """pylance replaces the whole schema by the one that a Project read, and so loses metadata that was set since.

    The transaction does not mention schema metadata, so we keep it.
    """
    since = any(one.theirs == "update_config" for one in case.last.checked)
    if case.last.operation != "project" or not since or theirs["schema_metadata"] == ours["schema_metadata"]:
        return False
    theirs["schema_metadata"] = ours["schema_metadata"]
    return True


_VERDICTS: dict[str, Callable[[Case], bool]] = {
    "worst_wins": _worst_wins,
    "worst_fragment_wins": _worst_fragment_wins,
    "passes_a_compaction": _passes_a_compaction,
    "ids_are_taken": _ids_are_taken,
    UNREADABLE: _unreadable,
    "cast_meanwhile": _cast_meanwhile,
}
_VERSIONS: dict[str, Callable[[Case, Facts, Facts], bool]] = {
    "deferred_remap": _deferred_remap,
    "empty_vector_index": _empty_vector_index,
    "schema_change_keeps_metadata": _schema_change_keeps_metadata,
}


def _reuse_index(facts: Facts) -> Any:
    return next((index for index in facts["indices"] if index["name"] == "__lance_frag_reuse"), None)
