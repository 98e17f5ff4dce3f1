"""What an operator does when committers refuse to run: `committerd position adopt`, with the command's own code."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio

from committerd.committer import operate
from committerd.committer.loading import Loading
from committerd.errors import SettingsError
from committerd.table.case import Sources
from committerd.table.versions import Table
from tests.simulation.process import EPOCH
from tests.simulation.queue import FakeQueue
from tests.simulation.staging import URI, new_uuid
from tests.simulation.store import FakeStore

if TYPE_CHECKING:
    from tests.simulation.world import World


async def adopt(world: World, *, offset: int | None = None) -> None:
    """Adopt the topic as it is now, if a committer would refuse to run; `offset` None = the proposed one."""
    rng = random.Random(f"{world.seed} operator")
    loading = Loading(monotonic=anyio.current_time)
    situation = await operate.look(FakeQueue(world.broker), Table(FakeStore(world.bucket, uri=URI)), loading)
    if situation.refusal is None:
        return
    try:
        position = operate.adopted(situation, offset)
    except SettingsError:
        return
    version = await operate.write(
        situation.loaded,
        loading,
        Sources(
            wall_clock=lambda: EPOCH + timedelta(seconds=anyio.current_time()),
            random=rng,
            new_uuid=lambda: new_uuid(rng),
        ),
        new_position=position,
        change_marks=lambda marks: marks,
        reason="simulated",
    )
    world.note(f"operator adopts offset {position.next_offset} in version {version}")
    world.auditor.adopted(position, by_cause=offset is None)
