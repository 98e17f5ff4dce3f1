"""What /livez and /readyz say: of one dataset, and of all that a process serves.

A stalled store raises an alert, and does not cause a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import anyio

from committerd.committer.state import State
from committerd.daemon.dataset import Membership
from committerd.machine import Machine

STALLED_SECONDS = 10.0
"""An event loop or Kafka thread that has not run for this long is stuck; only a restart can help."""
SILENT_SECONDS = 20.0
"""If Kafka has not responded for this long, it is away. It is asked every 5 s, and each response may take as long."""
_BEAT_SECONDS = 1.0
_REASON_CHARACTERS_MAX = 500
_SENTENCES_MAX = 20
_SENTENCE_CHARACTERS_MAX = 300


class Beat:
    """Shows that the event loop runs."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._at = monotonic()

    async def run(self) -> None:
        while True:
            self._at = self._monotonic()
            await anyio.sleep(_BEAT_SECONDS)

    def stalled(self, at: float | None = None) -> bool:
        """Whether the event loop, or a thread that last ran at `at`, has not run for too long."""
        return self._monotonic() - (self._at if at is None else at) > STALLED_SECONDS


class Condition(NamedTuple):
    """How a dataset is."""

    well: bool
    """Whether this process commits to it, or stands by."""
    text: str
    """What it does or waits for."""
    joins: bool = False
    """Whether the process is not yet a member of the dataset's group, so that it could not take over."""


class DatasetProbe:
    """The condition of one dataset while its committer runs."""

    def __init__(
        self, state: State, member: Membership, machine: Machine, *, expired: Callable[[], str] = lambda: ""
    ) -> None:
        """`expired`: which certificates of Kafka's settings have expired; empty if none has."""
        self._state = state
        self._member = member
        self._machine = machine
        self._expired = expired

    def condition(self) -> Condition:
        """Whether this process commits to the dataset or stands by, and a sentence on what it does or waits for.

        If Kafka does not respond to it, or its machine lacks what the work needs, it does neither.
        """
        found = self._part()
        if found.well and self._machine.trouble:
            return Condition(False, f"unavailable: {self._machine.trouble}")
        silent = self._member.silent_seconds()
        if silent >= SILENT_SECONDS:
            reasons = [why for why in (self._expired(), self._member.silence_reason()[:_REASON_CHARACTERS_MAX]) if why]
            because = f" ({'; '.join(reasons)})" if reasons else ""
            return Condition(False, f"Kafka has not responded for {silent:.0f} s{because}; before that: {found.text}")
        return found

    def _part(self) -> Condition:
        state = self._state
        match state.name:
            case "active":
                aside = f"; {state.aside}" if state.aside else ""
                return Condition(True, f"active: version {state.version}, position {state.position}{aside}")
            case "paused":
                return Condition(True, f"active, {state.text}")
            case "waiting_for_table":
                return Condition(True, f"active, waits for the table: {state.text}")
            case "standby":
                member = self._member.member_state()
                well = member == "standby"
                return Condition(well, f"{member}: {self._member.trouble() or state.text}", joins=not well)
            case _:
                return Condition(False, f"{state.name}: {state.text}")


def stuck_parts(beat: Beat, turned_at: Iterable[float]) -> list[str]:
    """The parts that are stuck, so that only a restart can help; empty if all is well.

    `turned_at`: when each thread that owns a consumer of Kafka last ran through its loop.
    """
    problems = []
    if beat.stalled():
        problems.append(f"the event loop has not run for {STALLED_SECONDS:g} s")
    if any(beat.stalled(at) for at in turned_at):
        problems.append(f"the Kafka thread has not run for {STALLED_SECONDS:g} s")
    return problems


def readiness(conditions: Sequence[tuple[str, Condition]]) -> tuple[bool, str]:
    """Whether a process with these datasets is ready, and why.

    One dataset counts as it is. Of many, a dataset that is not well does not count, because it has its reasons, and the
    others must stay ready; but all must have joined, and one must be well. The text names those that are not well.
    """
    if not conditions:
        return True, "no datasets"
    if len(conditions) == 1:
        condition = conditions[0][1]
        return condition.well, condition.text
    unwell = [(name, one) for name, one in conditions if not one.well]
    joining = sum(one.joins for _, one in unwell)
    ready = not joining and len(unwell) < len(conditions)
    active = sum(one.well and one.text.startswith("active") for _, one in conditions)
    standby = len(conditions) - len(unwell) - active
    parts = [f"{len(conditions)} datasets: {active} active, {standby} standby, {len(unwell)} not well"]
    parts += [f"{name}: {one.text}"[:_SENTENCE_CHARACTERS_MAX] for name, one in unwell[:_SENTENCES_MAX]]
    if len(unwell) > _SENTENCES_MAX:
        parts.append(f"and {len(unwell) - _SENTENCES_MAX} more")
    return ready, "; ".join(parts)
