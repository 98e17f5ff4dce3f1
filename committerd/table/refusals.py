"""Refusals: the outcomes of requests that are not committed."""

from __future__ import annotations

from committerd.errors import CommitterError, OutdatedRequest, RequestError, UnsupportedRequest
from committerd.lance.conflicts.grid import NOTHING_FOUND, Comparison, Verdict, reason
from committerd.lance.format.kind import Kind
from committerd.lance.rows.change import RowsAndKeys
from committerd.lance.rows.deletions import RowConflict
from committerd.lance.rows.group import MemberConflict
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import Status
from committerd.reasons import INVALID_REASONS
from committerd.table.case import Case
from committerd.table.since import Since
from committerd.table.versions import Gap

_ERROR_CHARS_MAX = 150
"""Characters of an unexpected error's message that an outcome quotes."""


INTERNAL_ERROR = "internal_error"
"""The reason of a record on which committerd itself fails."""


def refused_by(error: RequestError, found: Comparison = NOTHING_FOUND) -> Refused:
    """The refusal of a request that can never succeed: UNSUPPORTED, INVALID, or RETRYABLE if its work can be redone."""
    status = Status.INVALID
    if isinstance(error, UnsupportedRequest):
        status = Status.UNSUPPORTED
    elif isinstance(error, OutdatedRequest):
        status = Status.RETRYABLE
    return Refused(status=status, reason=error.code, message=str(error), found=found)


def mishandled(error: Exception) -> Refused:
    """The refusal of a record on which committerd fails with an unexpected error.

    An error whose code is a documented reason keeps that code, which is more precise than `internal_error`.
    """
    if isinstance(error, RequestError):
        return refused_by(error)
    code = error.code if isinstance(error, CommitterError) else ""
    return Refused(
        status=Status.INVALID,
        reason=code if code in INVALID_REASONS else INTERNAL_ERROR,
        message=f"committerd failed on this record and has not committed it: {type(error).__name__}: "
        f"{str(error)[:_ERROR_CHARS_MAX]}. The committer's log has the traceback; report the error",
    )


def table_exists(version: int) -> Refused:
    """The refusal of a transaction that only creates a table."""
    return Refused(
        status=Status.RETRYABLE, reason="table_exists", message=f"the table exists already, at version {version}"
    )


def schema_differs(differing: str, version: int) -> Refused:
    """The refusal of data that was written for another schema. `differing`: the contradiction."""
    return Refused(
        status=Status.RETRYABLE,
        reason="schema_differs",
        message=f"the data was not written for the schema of version {version}: {differing}. "
        "Open the table, write the data again, and stage it with the version that you have opened",
    )


def history_gap(case: Case, gap: Gap) -> Refused:
    """The refusal of a transaction that can't be compared with a version since its read version."""
    assert case.latest is not None
    latest = case.latest.version
    problem = (
        f"version {gap.version}, after read_version {case.transaction.read_version} and before the latest {latest}, "
        "can't be read (cleaned up?), so it is not known what it changed"
    )
    if case.options.rules_out_duplicate:
        status, message = Status.RETRYABLE, f"{problem}. Do the work again on version {latest}"
    else:
        status = Status.UNDECIDED
        message = (
            f"{problem}, nor whether this transaction was committed before. Check whether its data is in the table"
        )
    return Refused(status=status, reason="history_gap", message=message, conflicting_version=gap.version)


def conflict_with(case: Case, since: Since) -> Refused:
    """The refusal of a transaction that can't pass a version since its read version."""
    deciding = since.refuses
    assert deciding is not None
    assert case.latest is not None
    what, latest = deciding.theirs or "commit", case.latest.version
    retryable = deciding.verdict is Verdict.RETRYABLE
    blind = since.ours.files_read is None and deciding.rule in ("same_row", "same_row_or_key") and retryable
    problem = (
        f"this {case.operation.kind} can't pass the {what} that was committed as version {deciding.version} (rule "
        f"{deciding.rule}: {reason(deciding.rule).rstrip('.')})"
    )
    if since.unfollowed:
        problem += f". Rows can't be followed here: {since.unfollowed}"
    if blind:
        problem += ". Its read version is gone, so its changes can't be separated from those of others"
    advice = f"Read version {latest} and do the work again" if retryable else "It can't be committed"
    return Refused(
        status=Status.RETRYABLE if retryable else Status.INCOMPATIBLE,
        reason="read_version_gone" if blind else "conflict",
        message=f"{problem}. {advice}",
        conflicting_version=deciding.version,
        conflicting_operation=deciding.theirs or "",
        rule=deciding.rule,
        found=since.found,
    )


def row_conflict(conflict: RowConflict, since: Since | None, latest_version: int) -> Refused:
    """The refusal of a transaction whose rows, keys or files conflict with a version since its read version."""
    found = since.found if since is not None else NOTHING_FOUND
    operations = {one.version: one.theirs for one in found.conflicts}
    if since is not None:
        operations |= {version: theirs.kind for version, theirs in since.kept.parts}
    version = conflict.version
    if version not in operations:
        version = max((one.version for one in found.conflicts if one.verdict is Verdict.REBASABLE), default=0)
    return Refused(
        status=Status.RETRYABLE,
        reason="row_conflict" if conflict.rule == "same_row" else "conflict",
        message=f"{conflict.message}. Read version {latest_version} and do the work again",
        conflicting_version=version,
        conflicting_operation=operations.get(version) or "",
        rule=conflict.rule,
        found=found,
    )


def can_not_follow(
    conflict: MemberConflict, found: Comparison, *, version: int, rows_and_keys: RowsAndKeys | None
) -> Refused:
    """The refusal of a transaction that can't follow another one in the same `version`."""
    return Refused(
        status=Status.RETRYABLE,
        reason="row_conflict" if conflict.rule == "same_row" else "conflict",
        message=f"this transaction can't follow the {conflict.kind} that is committed in version {version}: "
        f"{conflict.message}. Read version {version} and do the work again",
        conflicting_version=version,
        conflicting_operation=conflict.kind,
        rule=conflict.rule,
        found=found,
        rows_and_keys=rows_and_keys,
    )


def goes_later(first: Kind, found: Comparison, *, rows_and_keys: RowsAndKeys | None) -> Refused:
    """The refusal of a transaction that conflicts with rows that an earlier one has reserved.

    `first`: the operation of the earlier one.
    """
    return Refused(
        status=Status.RETRYABLE,
        reason="row_conflict",
        message=f"this transaction and an earlier {first} change the same row or may insert the same key. The "
        "earlier one was refused and is being executed again, and it goes first. Do the work again on the latest "
        "version",
        conflicting_operation=first,
        rule="same_row",
        found=found,
        rows_and_keys=rows_and_keys,
    )
