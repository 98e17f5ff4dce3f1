"""Upserts under a stream of Appends, with `Reservations` alone, in virtual time. `make turns` measures it for real.

Each upserter executes an upsert, stages it, and executes it again when it is refused. It is refused if an Append was
committed since it was begun. The committer commits whatever has arrived, except in a hold.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import NamedTuple

from committerd.queue.reservations import Reservations, Retryable


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load; times in seconds."""

    upserters: int
    seconds_each: float
    """Mean time of one execution."""
    dying: float = 0.0
    """The share of executions in which the producer dies; another one takes its place 5 s later."""
    appends_per_second: float = 500.0
    duration: float = 60.0
    append_commit: float = 0.012
    upsert_commit: float = 0.006


class Measured(NamedTuple):
    """The results."""

    a_second: float
    """Upserts that were committed."""
    attempts_p99: int
    held_share: float
    """The share of the time in which the committer waited for re-executions."""


class _Upsert(NamedTuple):
    arrives: float
    uuid: str
    upserter: int
    attempt: int
    retry_of: str
    begun: float


def run(load: Load, *, seed: int = 1) -> Measured:
    """Run the load in virtual time."""
    reservations, rng = Reservations(seconds_max=2.0), random.Random(seed)
    now, appended_at, held = 0.0, -1.0, 0.0
    under_way: list[_Upsert] = []
    arrived: list[_Upsert] = []
    refused: dict[str, _Upsert] = {}
    attempts: list[int] = []

    def execute(upserter: int, attempt: int, retry_of: str, begun: float) -> None:
        if rng.random() < load.dying:
            attempt, retry_of, begun = 1, "", begun + 5.0
        takes = load.seconds_each * rng.uniform(0.5, 1.5)
        heapq.heappush(under_way, _Upsert(begun + takes, str(rng.random()), upserter, attempt, retry_of, begun))

    for upserter in range(load.upserters):
        execute(upserter, 1, "", 0.2 * rng.random())
    while now < load.duration:
        while under_way and under_way[0].arrives <= now:
            arrived.append(heapq.heappop(under_way))
        before, reservations = reservations, reservations.at(now, arrived={one.retry_of for one in arrived})
        held += before.held_seconds(now) if not reservations.hold else 0.0
        for uuid in [uuid for uuid in refused if uuid not in reservations.line]:
            one = refused.pop(uuid)
            execute(one.upserter, one.attempt + 1, uuid, now)
        hold = reservations.hold
        taken = [one for one in arrived if not hold or one.retry_of in hold]
        arrived = [one for one in arrived if one not in taken]
        lost = [one for one in taken if appended_at > one.begun]
        for one in taken:
            if one not in lost:
                attempts.append(one.attempt)
                execute(one.upserter, 1, "", now)
        step = (len(taken) - len(lost)) * load.upsert_commit or 0.002
        if not hold and now - appended_at > 1 / load.appends_per_second:
            step += load.append_commit
            appended_at = now + step
        now += step
        refused |= {one.uuid: one for one in lost}
        before, reservations = (
            reservations,
            reservations.settled(
                {one.retry_of for one in taken if one.retry_of},
                [
                    Retryable(
                        uuid=one.uuid, producer="", operation="update", attempt=one.attempt, retry_of=one.retry_of
                    )
                    for one in lost
                ],
                now=now,
            ),
        )
        held += before.held_seconds(now) if not reservations.hold else 0.0
    attempts.sort()
    return Measured(
        a_second=len(attempts) / load.duration,
        attempts_p99=attempts[int(0.99 * len(attempts))] if attempts else 0,
        held_share=held / load.duration,
    )
