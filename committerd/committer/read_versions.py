"""Whether the table still has the version that a record was read at. It may have been recreated, or put back."""

from __future__ import annotations

from committerd.committer.head import Head
from committerd.lance.format.kind import Kind
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import Status
from committerd.queue.put_back import lost_history, lost_refusal, may_be_lost
from committerd.table.needs import Steps, Versions
from committerd.table.versions import Gap
from committerd_common.request import Request


def known_from(request: Request, head: Head) -> int:
    """Return the version above which the history must be known to judge the request: its read version.

    If the table may have lost that one, it is the last version that the table has certainly kept: whoever committed the
    same record did so later. A Clone names a version of its source.
    """
    lost = lost_history(request, head.position)
    if lost is not None:
        return lost.kept
    return 0 if request.operation == Kind.CLONE else request.transaction.read_version


def is_read_at_lost(request: Request, head: Head) -> Steps[bool]:
    """Whether the request was read at a version that the table has lost; also if that can't be ruled out."""
    lost, version = lost_history(request, head.position), request.transaction.read_version
    if lost is None or request.envelope.read_uuid is None or version > lost.latest:
        return lost is not None
    made = yield from _creator(version, head)
    return made is None or made != request.envelope.read_uuid


def recreated(request: Request, uuid: str, head: Head) -> Steps[Refused | None]:
    """Refuse a request whose read version this table does not have: transaction `uuid` did not create it.

    None when it did, or when the creator of that version is unknown.
    """
    version = request.transaction.read_version
    if not 0 < version <= head.version:
        is_ahead = version > head.version and may_be_lost(request, head.position)
        return lost_refusal(request) if is_ahead else None
    made = yield from _creator(version, head)
    if made in (None, "", uuid):
        return None
    if may_be_lost(request, head.position):
        return lost_refusal(request)
    return Refused(
        status=Status.INVALID,
        reason="table_recreated",
        message=f"it was read at version {version} made by transaction {uuid}, but that version of this table was "
        f"made by {made}: the table was deleted and recreated. Do the work again on the new table",
    )


def _creator(version: int, head: Head) -> Steps[str | None]:
    """The uuid of the transaction that created a version; None if the version is unreadable."""
    formed = head.history.formed(version)
    if formed is not None:
        return formed.uuid
    found = yield Versions(version - 1, version)
    return None if isinstance(found, Gap) else str(found[0].uuid)
