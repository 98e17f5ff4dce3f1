"""Looks up uuids in the ledger: was a transaction committed or refused before?

The ledger knows of most uuids that they are new. For the others it names versions that may hold them, and their queue
entries decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from committerd.queue.ledger import NOT_SEEN, Earlier, Known, Ledger, names, refusal_in
from committerd.queue.outcomes import Settled
from committerd.table.needs import Gone, QueueEntries, Steps

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
