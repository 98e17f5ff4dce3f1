"""What an operator does, with the code of the commands: `committerd position adopt`, `pause` and `resume`."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio

from committerd.committer import operate
from committerd.committer.head import StartAgain
from committerd.committer.loading import Loading, load
from committerd.errors import CommitterError, SettingsError
from committerd.queue.position import Pause
from committerd.table.case import Sources
from committerd.table.versions import Table
from tests.simulation.process import EPOCH
from tests.simulation.queue import FakeQueue
from tests.simulation.staging import URI, new_uuid
from tests.simulation.store import FakeStore

if TYPE_CHECKING:
    from tests.simulation.world import World


async def adopt(world: World, *, offset: int | None = None) -> None:
    """Adopt the topic as it is now, if a committer would refuse to run; `offset` None = the proposed one.

    First deletes the versions that, as the log says, landed in a table other than the table they were built on.
    """
    world.auditor.remove_astray()
    rng = random.Random(f"{world.seed} operator")
    loading = Loading(monotonic=anyio.current_time)
    situation = await operate.look(FakeQueue(world.broker), Table(FakeStore(world.bucket, uri=URI)), loading)
    if situation.refusal is None:
        return
    try:
        position = operate.adopted(situation, offset)
    except SettingsError:
        return
    version = await operate.write(situation.loaded, loading, _sources(rng), new_position=position, reason="simulated")
    world.note(f"operator adopts offset {position.next_offset} in version {version}")
    world.auditor.adopted(position, by_cause=offset is None)


async def set_pause(world: World, pause: Pause | None) -> bool:
    """Pause the queue, or resume it (None). False if the table has no position yet, or others were faster too often."""
    rng = random.Random(f"{world.seed} pause {anyio.current_time()}")
    loading = Loading(monotonic=anyio.current_time, later=True)
    try:
        loaded = await load(Table(FakeStore(world.bucket, uri=URI)), loading)
        if (loaded.pause is None) == (pause is None):
            return True
        version = await operate.write(
            loaded, loading, _sources(rng), new_position=None, change_pause=lambda _: pause, reason="simulated"
        )
    except (CommitterError, StartAgain):
        return False
    world.note(f"operator {'resumes' if pause is None else 'pauses'} in version {version}")
    return True


def _sources(rng: random.Random) -> Sources:
    return Sources(
        wall_clock=lambda: EPOCH + timedelta(seconds=anyio.current_time()),
        random=rng,
        new_uuid=lambda: new_uuid(rng),
    )
