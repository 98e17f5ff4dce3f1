"""Reservations: a refused transaction that comes again reserves what it needs for a short time.

A transaction that is refused RETRYABLE is executed again. Meanwhile others are committed that it may conflict with, so
it could be refused for ever. A reservation prevents that:

    refused --> in line --> reserved --> over

* *Refused*: a Delete or an Update that conflicts with another Delete or Update needs its rows and keys, if its producer
  promises to execute it again. It is not known with what any other transaction will conflict: it needs everything, once
  it is refused for the second time. The first refusal is normal under load, and costs one more try. If a transaction
  needs nothing, or finds no room, its outcome is published and nothing is reserved.
* *In line*: its outcome is held back. It leaves the line at once if it need not wait. Rows wait while they conflict
  with rows that are reserved, or that wait before them. Everything waits in a cooldown, and while transactions of
  another operation have it.
* *Reserved*: its outcome is published. If rows are reserved, other transactions that conflict with them are refused. If
  everything is reserved, the committer *holds*: it commits nothing else. A hold is for all transactions of one
  operation that wait for it, and for those that are refused during the hold. They are of one operation because the
  first Update to come again would conflict with a Rewrite of the same hold.
* *Over*: its re-execution is committed or refused, or `seconds_max` have passed. Rows stay reserved beyond that time if
  the re-execution has arrived and waits to be judged.

A *cooldown* follows each hold, three times as long as the committer has waited in it, and each reservation whose
re-execution does not arrive, three times as long as `seconds_max`. In a cooldown nothing new is reserved. So holds, and
producers that break their promise, take at most a quarter of the time.

Each refusal is also a *ticket* for one record: the first one that names it (`retry-of`) and has the same producer. That
record is judged before waiting ones. A record without a ticket counts as a first try, whatever its headers say.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from committerd.lance.rows.change import RowsAndKeys

COOLDOWN_FACTOR = 3
"""A cooldown is this many times as long as what it follows."""
WAIT_FACTOR = 4
"""Rows wait in line for at most this many times `seconds_max`; then the outcome is published, and they are not
reserved.
"""
ROWS_ATTEMPT_MAX = 2
"""The highest attempt whose refusal reserves rows; after the next one, everything is needed."""
EVERYTHING_ATTEMPT_MIN = 2
"""The lowest attempt whose refusal reserves everything."""
ROWS_MAX, ROWS_LINE_MAX = 32, 64
"""The largest number of transactions whose rows are reserved, and of those whose rows wait in line. Any other Delete or
Update is compared with all of them.
"""
ROWS_BYTES_MAX = 256 * 1024
"""The most memory of one transaction's rows and keys, in bytes. With more, they are not reserved."""
EVERYTHING_MAX = 256
"""The largest number of transactions that have everything in one hold."""
EVERYTHING_LINE_MAX = 1000
"""The largest number of transactions that wait for a hold."""
TICKETS_MAX = 4096
"""The largest number of tickets; with more, the oldest are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retryable:
    """A transaction that was refused RETRYABLE."""

    uuid: str
    producer: str
    operation: str
    attempt: int = 1
    """The number of the try; 1 without a ticket."""
    retry_of: str | None = None
    """The refused uuid whose ticket its record had."""
    rows_and_keys: RowsAndKeys | None = None
    """Its rows and keys, if they are all that it needs; None = it needs everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What is reserved for one transaction, or what it waits for."""

    operation: str
    rows: RowsAndKeys | None
    """None = everything."""
    since: float
    """When it was reserved; while the transaction waits in line, when it was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations:
    """What is reserved at one time, and which transactions wait in line. Times are in seconds, on a monotonic clock."""

    seconds_max: float = 0.0
    """How long something is reserved at most; 0 = nothing ever is."""
    reserved: Mapping[str, Reservation] = field(default_factory=dict)
    """By uuid of the refused transaction."""
    line: Mapping[str, Reservation] = field(default_factory=dict)
    """By uuid, in the order of refusal. The outcome of a transaction is held back exactly while it is here."""
    tickets: Mapping[str, str] = field(default_factory=dict)
    """By refused uuid, the producer whose record may go first; the newest last."""
    complete_at: float = math.inf
    """When the last re-execution of the present hold arrived; infinite while one is missing."""
    cooldown_until: float = -math.inf

    @property
    def hold(self) -> Mapping[str, Reservation]:
        """Those of `reserved` that have everything: only their re-executions may be committed. Empty = no hold."""
        return {uuid: one for uuid, one in self.reserved.items() if one.rows is None}

    def held_seconds(self, now: float) -> float:
        """Return for how many seconds the present hold has waited for re-executions; 0 if there is no hold."""
        since = min((one.since for one in self.hold.values()), default=now)
        return min(max(min(now, self.complete_at) - since, 0.0), self.seconds_max)

    def has_ticket(self, refused: str, producer: str) -> bool:
        """Whether the first record of this producer that names this refused uuid may go before waiting ones."""
        return self.tickets.get(refused) == producer

    def takes_rows(self, attempt: int) -> bool:
        """Whether the rows of a transaction that is refused at this attempt may be reserved."""
        return self.seconds_max > 0 and attempt <= ROWS_ATTEMPT_MAX

    def conflict_of(self, rows_and_keys: RowsAndKeys) -> RowsAndKeys | None:
        """Return the reserved rows and keys that conflict with a transaction of these rows and keys; None if none do.

        Not for re-executions, which are judged against the table alone.
        """
        reserved = (one.rows for one in self.reserved.values() if one.rows is not None)
        return next((rows for rows in reserved if rows.conflicts_with(rows_and_keys)), None)

    def settled(self, retries: Collection[str], refused: Sequence[Retryable], *, now: float) -> Reservations:
        """Return what is reserved after versions have settled records.

        `retries`: the refused uuids whose tickets these records had, whatever came of the records. `refused`: the
        transactions that were refused RETRYABLE, in the order of their offsets.
        """
        if not retries and not refused:
            return self
        tickets, reserved, line = dict(self.tickets), dict(self.reserved), dict(self.line)
        over = {uuid: reserved.pop(uuid) for uuid in retries if uuid in reserved}
        for uuid in (*retries, *(one.uuid for one in refused)):
            tickets.pop(uuid, None)
        for one in refused:
            tickets[one.uuid] = one.producer
            wanted = _wanted(one, now) if self.seconds_max > 0 else None
            before = over.get(one.retry_of or "")
            if wanted is None or one.uuid in reserved or one.uuid in line:
                continue
            if before is not None and _is_alike(before, wanted):
                reserved[one.uuid] = replace(wanted, since=before.since)  # it keeps its place, and only for its time
            else:
                line[one.uuid] = wanted
        tickets = dict(islice(tickets.items(), max(len(tickets) - TICKETS_MAX, 0), None))
        after = replace(self, tickets=tickets, reserved=reserved, line=line)
        if self.hold and not after.hold:
            after = replace(
                after, cooldown_until=max(self.cooldown_until, now + COOLDOWN_FACTOR * self.held_seconds(now))
            )
        return after._moved_up(now, new=None if over else line.keys() - self.line.keys())

    def at(self, now: float, *, arrived: Container[str]) -> Reservations:
        """Return what is reserved at a later time. `arrived`: the uuids whose re-executions wait to be judged."""
        reserved = {
            uuid: one
            for uuid, one in self.reserved.items()
            if now < one.since + self.seconds_max or (one.rows is not None and uuid in arrived)
        }
        is_complete = bool(self.hold) and all(uuid in arrived for uuid in self.hold)
        after = replace(self, complete_at=min(self.complete_at, now) if is_complete else math.inf)
        if len(reserved) == len(self.reserved):
            return after._moved_up(now, new=())
        cooldown_until = now + COOLDOWN_FACTOR * self.seconds_max
        return replace(after, reserved=reserved, cooldown_until=cooldown_until)._moved_up(now, new=None)

    def seconds_until(self, now: float) -> float:
        """Return the seconds until `at` may return something else; infinite if it never does."""
        times = [one.since + self.seconds_max for one in self.reserved.values()]
        times += [one.since + WAIT_FACTOR * self.seconds_max for one in self.line.values() if one.rows is not None]
        times += [self.cooldown_until] if self.line else []
        return min((time for time in times if time > now), default=math.inf) - now

    def forgotten(self) -> Reservations:
        """Return what is left when the assignment is over: nothing but the cooldown."""
        return Reservations(seconds_max=self.seconds_max, cooldown_until=self.cooldown_until)

    def _moved_up(self, now: float, *, new: Container[str] | None) -> Reservations:
        """Reserve, in the order of the line, what those that wait need. Some leave the line without it.

        `new`: the uuids that have joined the line, if nothing that was reserved is over since: only their rows are
        compared.
        """
        reserved, line = dict(self.reserved), dict[str, Reservation]()
        rows, behind = [one.rows for one in reserved.values() if one.rows is not None], list[RowsAndKeys]()
        hold = list(self.hold.values())
        cools_down = now < self.cooldown_until
        for uuid, one in self.line.items():
            if one.rows is None:
                begins = not cools_down
                if hold:
                    begins = one.operation == hold[0].operation and len(hold) < EVERYTHING_MAX
                if begins:
                    reserved[uuid] = replace(one, since=hold[0].since if hold else now)
                    hold.append(reserved[uuid])
                elif len(line) - len(behind) < EVERYTHING_LINE_MAX:
                    line[uuid] = one
            elif not cools_down and now < one.since + WAIT_FACTOR * self.seconds_max:
                waits = new is not None and uuid not in new
                waits = waits or any(_conflict(other, one.rows) for other in (*rows, *behind))
                if waits and len(behind) < ROWS_LINE_MAX:
                    line[uuid] = one
                    behind.append(one.rows)
                elif not waits and len(rows) < ROWS_MAX:
                    reserved[uuid] = replace(one, since=now)
                    rows.append(one.rows)
        return replace(self, reserved=reserved, line=line)


def _wanted(one: Retryable, now: float) -> Reservation | None:
    """What a transaction that was refused at this time needs; None = it may come again without a reservation."""
    rows = one.rows_and_keys if one.attempt <= ROWS_ATTEMPT_MAX else None
    if rows is None and one.attempt < EVERYTHING_ATTEMPT_MIN:
        return None
    return Reservation(operation=one.operation, rows=rows, since=now)


def _is_alike(one: Reservation, other: Reservation) -> bool:
    """Whether the same is reserved for both: rows, or everything for the same operation."""
    return (one.operation, one.rows is None) == (other.operation, other.rows is None)


def _conflict(one: RowsAndKeys, other: RowsAndKeys) -> bool:
    """Whether one of the two has to be executed again if the other one is committed before it."""
    return one.conflicts_with(other) or other.conflicts_with(one)
