"""Decides whether a record was settled before, by its uuid or its version of an application, and whether that version
follows the last one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from committerd.lance.conflicts.grid import NOTHING_FOUND, Comparison
from committerd.lance.rows.change import RowsAndKeys
from committerd.queue.ledger import KNOWN_VERSIONS, Earlier
from committerd.queue.outcomes import Status
from committerd.queue.position import AppMark
from committerd_common.messages import DUPLICATE, Refusal
from committerd_common.request import MARK_MOVED, AppUnit, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The outcome of a record that is not committed. `reason` is stable snake case; `message` is for people."""

    status: Status
    reason: str
    message: str
    version: int = 0
    """DUPLICATE: the version that holds the transaction; 0 = unknown."""
    conflicting_version: int = 0
    conflicting_operation: str = ""
    rule: str = ""
    """Name of the conflict rule that refuses it; empty = no conflict rule does."""
    found: Comparison = NOTHING_FOUND
    """The comparison behind it."""
    rows_and_keys: RowsAndKeys | None = None
    """The rows and keys of a Delete or Update that was refused because of another one; None if unknown or not
    requested.
    """


def dedupe(
    request: Request,
    earlier: Earlier,
    marks: Mapping[str, AppMark],
    *,
    version: int,
    members: Container[str] = (),
    refusals: Iterable[Refusal] = (),
) -> Refused | None:
    """The outcome of a record that was settled before, or whose unit of an application can't be next; None for others.

    `earlier` is the history of the record's uuid. `members` (uuids) and `refusals` are those of the group being formed,
    which becomes `version`; `marks` include the group's marks. For the replay of a dead letter no refusal counts.
    """
    uuid, app = request.uuid, request.envelope.app
    seen = earlier.committed
    if seen is None and uuid in members:
        seen = version
    if seen is not None:
        return _duplicate("uuid_seen", f"transaction {uuid} is in the table at version {seen}", seen)
    marked = _marked(app, marks.get(app.app_id)) if app is not None else None
    if marked is not None and marked.status is Status.DUPLICATE:
        return marked
    refusal = None
    if request.envelope.replay_of is None:
        refusal = earlier.refusal or next((r for r in refusals if r.uuid == uuid and r.status != DUPLICATE), None)
    if refusal is not None:
        return again(refusal)
    if marked is not None:
        return marked
    if earlier.unknown_at is not None and app is None:
        return _undecided(request, earlier.unknown_at)
    return None


def looked_for_above(read_version: int, *, latest: int) -> int:
    """The version above which every version is searched where there is no ledger: of a table at `latest`."""
    return max(min(read_version, latest - KNOWN_VERSIONS), 0)


def no_room_for(app: AppUnit, *, most: int) -> Refused:
    """The refusal of an application that has no mark, where the table has no room for one more.

    Doing the work again at once can't help, so it is INVALID and not RETRYABLE: the producer learns at once that an
    operator has to act, and the dead letter can be replayed when the operator has.
    """
    return Refused(
        status=Status.INVALID,
        reason="app_marks_full",
        message=f"application {app.app_id!r} is new, and the table has no room to remember it (commit.app_marks_max is "
        f"{most}). Let the operator release one that is given up (`committerd app release ID`) or raise the setting, "
        "and then run `committerd dead replay`",
    )


def again(earlier: Refusal) -> Refused:
    """The same outcome as in an earlier refusal."""
    return Refused(
        status=Status.of_number(earlier.status),
        reason=earlier.reason,
        message=earlier.message,
        version=earlier.version,
        conflicting_version=earlier.conflicting_version,
        conflicting_operation=earlier.conflicting_operation,
    )


def _undecided(request: Request, version: int) -> Refused:
    read_version = request.transaction.read_version
    return Refused(
        status=Status.UNDECIDED,
        reason="history_gap",
        message=f"version {version} may hold this transaction (its read_version is {read_version}): the "
        "committer has dropped that version from memory, or can't read it. Check whether the data is in the table. To "
        "avoid this, stage with the version that you have read, or with an app-id, or raise memory.ledger_bytes",
        conflicting_version=version,
    )


def _marked(app: AppUnit, mark: AppMark | None) -> Refused | None:
    if mark is None or mark.released:
        return _moved(app, None) if app.after else None
    if app.run != mark.run:
        return Refused(
            status=Status.INVALID,
            reason="app_id_in_use",
            message=f"application {app.app_id!r} counts its versions in run {mark.run!r}, but this record is of run "
            f"{app.run!r}: after a lost checkpoint it counts from 0 again, and its data would vanish as duplicates. "
            "Restore the checkpoint, or use another app-id, or let the operator run `committerd app release "
            f"{app.app_id}`",
        )
    if app.version <= mark.version:
        known = mark.table_version if app.version == mark.version else 0
        return _duplicate(
            "app_version_seen",
            f"application {app.app_id!r} has committed version {mark.version}, this record is its version "
            f"{app.version}",
            known,
        )
    return _moved(app, mark.version) if app.after not in (None, mark.version) else None


def _moved(app: AppUnit, version: int | None) -> Refused:
    """`version`: the last one in the table; None = it has none."""
    if version is None:
        found = "the table has none, or has forgotten it (after 30 days, or `committerd app release`): find out first "
        found += "what is in the table"
    else:
        found = f"the last one in the table is {version}: go on behind it"
    return Refused(
        status=Status.RETRYABLE,
        reason=MARK_MOVED,
        message=f"version {app.version} of application {app.app_id!r} must follow its version {app.after} (header "
        f"app-after), and {found}",
    )


def _duplicate(reason: str, message: str, version: int) -> Refused:
    return Refused(status=Status.DUPLICATE, reason=reason, message=message, version=version)
