"""Precedence: of transactions that conflict with each other, the one that was refused is committed next.

Two upserts of one row, or of one new key, can't both be committed as they were executed: the later one is refused and
executed again. Meanwhile a third one could be committed, so that it would be refused once more, and so on. So a refused
transaction *has precedence* while its re-execution is awaited: a transaction that conflicts with it is refused,
although it conflicts with nothing that is committed. If two refused transactions conflict with each other, the later
one *waits in line*: its outcome is published when the re-execution of the earlier one is settled. So no re-execution
meets a conflict that was committed since, and everything else continues.

Only transactions whose producers say that they execute them again (header `will-retry`) have precedence or wait. If
such a re-execution does not arrive in time, there is no precedence for a while, so a producer that breaks its promise
costs the others little.

This differs from `turns`, whose holds are for conflicts with what no one can foresee: Appends that do not name their
keys.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from committerd.lance.rows.change import RowsAndKeys

ATTEMPT_MAX = 2
"""The highest attempt whose refusal gives precedence. One that is refused again all the same needs a hold (`turns`)."""
AWAITED_MAX = 32
"""The largest number of transactions that have precedence. Each other one is compared with all of them."""
LINE_MAX = 64
"""The largest number of refusals that wait in line: about as many as can get their turn before `WAIT_FACTOR` is up."""
BYTES_MAX = 256 * 1024
"""The most memory of one transaction's rows and keys, in bytes. With more it has no precedence and does not wait."""
WAIT_FACTOR = 4
"""A refusal waits at most this many times `seconds_max`; then it is published, and has no precedence."""
PAUSE_FACTOR = 3
"""After a re-execution that did not arrive in time, there is no precedence for this many times `seconds_max`."""


@dataclass(slots=True, kw_only=True)
class _Waiting:
    rows_and_keys: RowsAndKeys
    since: float
    behind: str
    """The uuid of one that has precedence, or waits before it, and that it conflicts with."""


@dataclass(slots=True)
class Precedence:
    """The refused transactions that have precedence or wait for it. Times are in seconds, on a monotonic clock.

    What is remembered is bounded by `AWAITED_MAX`, `LINE_MAX` and `BYTES_MAX`. One that waits is compared with others
    only when the one that it is behind has left.
    """

    seconds_max: float
    """How long a transaction has precedence at most, its re-executions included; 0 = none ever has."""
    _awaited: dict[str, tuple[RowsAndKeys, float]] = field(default_factory=dict)
    """Those that have precedence, by uuid, and since when: their re-executions are awaited."""
    _line: dict[str, _Waiting] = field(default_factory=dict)
    """Those whose outcomes wait to be published, by uuid, in the order of refusal."""
    _overdue: list[str] = field(default_factory=list)
    """The uuids of those that left the line and are to be published, without precedence."""
    _began: Mapping[str, float] = field(default_factory=dict)
    """When the precedence of each transaction began whose re-execution the last `settled` noted, by uuid, in
    seconds.
    """
    _pause_until: float = -math.inf

    def takes(self, *, attempt: int, now: float) -> bool:
        """Whether a transaction that is refused at this attempt may have precedence, or wait for it."""
        return self.seconds_max > 0 and attempt <= ATTEMPT_MAX and now >= self._pause_until

    def conflicting(self, rows_and_keys: RowsAndKeys) -> RowsAndKeys | None:
        """Return the rows and keys of a transaction that has precedence and that this one conflicts with; None if there
        is none.

        Not for re-executions, which are judged against the table alone.
        """
        return next((one for one, _ in self._awaited.values() if one.conflicts_with(rows_and_keys)), None)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction has precedence."""
        return not self._awaited

    def may_be_first(self, rows_and_keys: RowsAndKeys) -> bool:
        """Whether a transaction that is refused now would not have to wait in line."""
        return self._behind(rows_and_keys, before=self._line) is None

    def refused(self, uuid: str, rows_and_keys: RowsAndKeys, *, retry_of: str | None, now: float) -> bool:
        """Note that a transaction was refused because it conflicts with another one, and that `takes` it.

        `retry_of`: the refused uuid that it names. Returns whether its outcome waits: then it is published only once
        `due` returns its uuid.
        """
        if rows_and_keys.bytes > BYTES_MAX:
            return False
        began = self._began.get(retry_of) if retry_of is not None else None
        behind = self._behind(rows_and_keys, before=() if began is not None else self._line)
        if behind is None:
            if len(self._awaited) < AWAITED_MAX:
                self._awaited[uuid] = rows_and_keys, now if began is None else began
            return False
        if len(self._line) >= LINE_MAX or uuid in self._line:
            return False
        self._line[uuid] = _Waiting(rows_and_keys=rows_and_keys, since=now, behind=behind)
        return True

    def settled(self, retries: Iterable[str]) -> int:
        """Note that re-executions were committed or refused; `retries` are the refused uuids that they name.

        Returns how many of these had precedence.
        """
        began: dict[str, float] = {}
        for uuid in retries:
            if uuid in self._awaited:
                began[uuid] = self._awaited.pop(uuid)[1]
            elif self._line.pop(uuid, None) is not None:  # staged twice, and the other outcome was published
                self._overdue.append(uuid)
        self._began = began
        return len(began)

    def expire(self, now: float, *, arrived: Container[str]) -> int:
        """End the precedence of those whose re-executions did not arrive in time; returns their number.

        `arrived`: the refused uuids whose re-executions wait to be judged.
        """
        late = [
            uuid
            for uuid, (_, since) in self._awaited.items()
            if now >= since + self.seconds_max and uuid not in arrived
        ]
        for uuid in late:
            del self._awaited[uuid]
        if late:
            self._pause_until = now + PAUSE_FACTOR * self.seconds_max
        return len(late)

    def due(self, now: float) -> list[str]:
        """Return the uuids whose outcomes are to be published now. They have precedence from now on.

        In a pause, all that wait are due, and have none; so is one that has waited for too long.
        """
        due, self._overdue = self._overdue, []
        for uuid, one in list(self._line.items()):
            if now < self._pause_until or now >= one.since + WAIT_FACTOR * self.seconds_max:
                del self._line[uuid]
                due.append(uuid)
        before: dict[str, _Waiting] = {}
        for uuid, one in list(self._line.items()):
            if one.behind in self._awaited or one.behind in before:
                before[uuid] = one
                continue
            behind = self._behind(one.rows_and_keys, before=before)
            if behind is None and len(self._awaited) < AWAITED_MAX:
                del self._line[uuid]
                self._awaited[uuid] = one.rows_and_keys, now
                due.append(uuid)
                continue
            one.behind = behind or next(reversed(self._awaited))
            before[uuid] = one
        return due

    def seconds_until(self, now: float) -> float | None:
        """Seconds until `expire` or `due` has something to do; None if no outcome waits."""
        if self._overdue:
            return 0.0
        if not self._line:
            return None
        times = [since + self.seconds_max for _, since in self._awaited.values() if since + self.seconds_max > now]
        times.append(next(iter(self._line.values())).since + WAIT_FACTOR * self.seconds_max)
        return max(min(times) - now, 0.0)

    def forget(self) -> None:
        """Drop everything, because the assignment is over. A pause stays in force."""
        self._awaited.clear()
        self._line.clear()
        self._overdue.clear()

    def _behind(self, rows_and_keys: RowsAndKeys, *, before: Iterable[str]) -> str | None:
        """Return the uuid of one that it conflicts with, among those that have precedence and those before it."""
        for uuid in reversed(self._awaited):
            if _conflict(self._awaited[uuid][0], rows_and_keys):
                return uuid
        return next((uuid for uuid in before if _conflict(self._line[uuid].rows_and_keys, rows_and_keys)), None)


def _conflict(one: RowsAndKeys, other: RowsAndKeys) -> bool:
    """Whether one of the two has to be executed again if the other one is committed before it."""
    return one.conflicts_with(other) or other.conflicts_with(one)
