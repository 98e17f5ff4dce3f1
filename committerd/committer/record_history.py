"""What the table's history says of a record: was it settled before, and at which version of this table was it read?

The ledger knows of most uuids that they are new. For the others it names versions that may hold them, and their queue
entries decide. The table may have lost the version that a record was read at: it may have been recreated, or put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from committerd.committer.head import Head
from committerd.lance.format.kind import Kind
from committerd.queue.dedupe import Refused
from committerd.queue.ledger import NOT_SEEN, Earlier, Known, Ledger, names, refusal_in
from committerd.queue.outcomes import Settled, Status
from committerd.queue.put_back import lost_history, lost_refusal, may_be_lost
from committerd.table.needs import Gone, QueueEntries, Steps, Versions
from committerd.table.versions import Gap
from committerd_common.request import Request

AskedUuid = tuple[str, int]
"""A uuid, and the version above which all versions must be known to call it new."""

_AT_ONCE = 64
"""Uuids to look up together, so that a distant store is kept busy. The entries of their versions are in memory then."""


def look_up(
    asked: Iterable[AskedUuid], ledger: Ledger, *, created: int | None = None
) -> Steps[Mapping[AskedUuid, Earlier]]:
    """Look up uuids in all versions that the ledger knows.

    If a version above the one asked for is not known, a uuid is not known to be new. A version that the ledger has
    still to read counts like one that it has dropped. `created`: the highest version of the ledger that exists; None =
    all exist. The ledger may have dropped versions above it, which are formed ahead: they do not exist yet, but must
    not count as deleted.
    """
    found, unknown = dict[AskedUuid, Earlier](), list[AskedUuid]()
    for one in dict.fromkeys(asked):
        if ledger.rules_out(*one):
            found[one] = NOT_SEEN
        else:
            unknown.append(one)
    floor = ledger.unknown_up_to
    is_gone = False
    if any(after < floor for _, after in unknown) and not (created is not None and floor > created):
        is_gone = yield Gone(floor)
    for low in range(0, len(unknown), _AT_ONCE):
        some = [(*one, ledger.known(one[0])) for one in unknown[low : low + _AT_ONCE]]
        maybe = dict.fromkeys(version for _, _, known in some for version in known.maybe)
        entries: Mapping[int, Settled | None] = (yield QueueEntries(list(maybe))) if maybe else {}
        for uuid, after, known in some:
            floor_counts = after < floor and not is_gone
            found[uuid, after] = _earlier(known, uuid, entries, unknown_at=floor if floor_counts else None)
    return found


def _earlier(known: Known, uuid: str, entries: Mapping[int, Settled | None], *, unknown_at: int | None) -> Earlier:
    committed, refusal, maybe = known
    for version in maybe:
        settled = entries[version]
        if settled is None:
            unknown_at = version
        elif names(settled, uuid):
            committed = version
            break
        elif refusal is None:
            refusal = refusal_in(settled, uuid)
    return Earlier(committed=committed, refusal=refusal, unknown_at=unknown_at)


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
