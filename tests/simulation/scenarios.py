"""The scenarios of seeds: one number decides which faults are combined, and how often each occurs."""

from __future__ import annotations

import random

from tests.simulation.chaos import HOUR, Chaos, Event
from tests.simulation.faults import Rates
from tests.simulation.world import Scenario

ROUGH = Rates(refused=0.02, lost=0.02, doubled=0.02, latency=0.01, slow=0.02, slow_seconds=10.0)
STORM = Rates(refused=0.1, lost=0.1, doubled=0.05, latency=0.05, slow=0.05, slow_seconds=30.0)
SMOOTH = Rates(latency=0.005)


def scenario_of(seed: int) -> Scenario:
    """Return the scenario of this seed."""
    rng = random.Random(f"{seed} scenario")
    hours = rng.random() < 0.1
    seconds = rng.uniform(2.5, 3.5) * HOUR if hours else rng.choice((10.0, 60.0, 300.0))
    events: dict[Event, float] = {
        Chaos.crash: 4.0,
        Chaos.stop: 1.0,
        Chaos.stand_still: 3.0,
        Chaos.hand_over: 2.0,
        Chaos.fence: 4.0,
        Chaos.fence_and_crash: 2.0,
        Chaos.lose_group_offset: 1.0,
        Chaos.expire_log: 0.5,
        Chaos.store_outage: 1.0,
        Chaos.clock_jump: 0.5,
        Chaos.file_comes_or_goes: 4.0,
        Chaos.leave_transaction_open: 1.0,
    }
    if rng.random() < 0.12:
        events[Chaos.recreate_topic] = 6.0
    if hours:
        events |= {Chaos.clean_up: 2.0, Chaos.forget: 4.0, Chaos.oversleep: 12.0}
    if random.Random(f"{seed} pauses").random() < 0.3:  # its own numbers: the other seeds stay as they were
        events[Chaos.pause] = 6.0
    return Scenario(
        producers=random.Random(f"{seed} names").choice((0, 3)),
        records=rng.randint(8, 40),
        seconds=seconds,
        table="there" if hours else rng.choices(("there", "made_by_foreign", "made_by_queue"), (8, 1, 2))[0],
        rates=rng.choices((SMOOTH, ROUGH, STORM), (2, 5, 2))[0],
        events=events,
        event_seconds=seconds / rng.choice((3, 10, 25)),
        foreign_seconds=rng.choice((None, seconds / 4, seconds / 15)),
        settings={
            "verify_files": rng.choice(("always", "always", "never")),
            "coalesce": rng.choices(("all", "appends", "none"), (6, 1, 1))[0],
            "group_records_max": rng.choice((1, 3, 1000, 1000)),
            "batch_producers": random.Random(f"{seed} batch").choice(((), ("0",))),
        },
        recheck_seconds=60.0 if hours else 10.0,
        room=rng.choice((2, 5, 50)),
        history_batch=rng.choice((1, 3, 256)),
    )
