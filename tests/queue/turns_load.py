"""Upserts under a stream of Appends, with `Turns` alone, in virtual time. `make turns` measures the same for real.

Each upserter executes an upsert, stages it, and executes it again when it is refused. It is refused if an Append was
committed since it was begun. The committer commits whatever has arrived, except in a hold.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import NamedTuple

from committerd.queue.turns import Turns


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
    """Part of the time in which the committer waited for re-executions."""


class _Upsert(NamedTuple):
    arrives: float
    uuid: str
    upserter: int
    attempt: int
    retry_of: str
    begun: float


def run(load: Load, turns: Turns | None = None, *, seed: int = 1) -> Measured:
    """Run the load in virtual time."""
    turns, rng = turns or Turns(2.0), random.Random(seed)
    now, appended_at, held = 0.0, -1.0, 0.0
    under_way: list[_Upsert] = []
    arrived: list[_Upsert] = []
    refused: dict[str, _Upsert] = {}
    attempts: list[int] = []
    left = frozenset[str]()

    def execute(upserter: int, attempt: int, retry_of: str, begun: float) -> None:
        if rng.random() < load.dying:
            attempt, retry_of, begun = 1, "", begun + 5.0
        takes = load.seconds_each * rng.uniform(0.5, 1.5)
        heapq.heappush(under_way, _Upsert(begun + takes, str(rng.random()), upserter, attempt, retry_of, begun))

    def publish(uuid: str) -> None:
        one = refused.pop(uuid)
        execute(one.upserter, one.attempt + 1, uuid, now)

    for upserter in range(load.upserters):
        execute(upserter, 1, "", 0.2 * rng.random())
    while now < load.duration:
        while under_way and under_way[0].arrives <= now:
            arrived.append(heapq.heappop(under_way))
        retries = frozenset(one.retry_of for one in arrived if one.retry_of)
        held_for = frozenset(turns.held_for)
        if ended := turns.end(retries, now):
            held += ended[1]
        if not turns.seconds_left(now):
            left, before = (held_for or left) & retries, left
            held_for = left
            if not left or left == before:
                if before:
                    turns.pause(now)
                left = frozenset()
                for uuid in turns.begin(now):
                    publish(uuid)
                held_for = frozenset(turns.held_for)
        committed = 0
        for one in [one for one in arrived if not held_for or one.retry_of in held_for]:
            arrived.remove(one)
            if appended_at <= one.begun:
                attempts.append(one.attempt)
                committed += 1
                execute(one.upserter, 1, "", now)
                continue
            refused[one.uuid] = one
            if not turns.refused(one.uuid, operation="update", attempt=one.attempt):
                publish(one.uuid)
        step = committed * load.upsert_commit or 0.002
        if not held_for and now - appended_at > 1 / load.appends_per_second:
            step += load.append_commit
            appended_at = now + step
        now += step
    attempts.sort()
    return Measured(
        a_second=len(attempts) / load.duration,
        attempts_p99=attempts[int(0.99 * len(attempts))] if attempts else 0,
        held_share=held / load.duration,
    )
