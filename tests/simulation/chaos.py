"""External events that happen to committers, broker and table. A scenario names the events that may happen."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import anyio

from committerd.queue.position import Pause, Position, highest
from committerd_common.paths import VERSIONS, parse_manifest_name
from tests.simulation.faults import Rates
from tests.simulation.operator import adopt, set_pause
from tests.simulation.store import Change

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

HOUR = 3600.0
_DOWN = Rates(refused=1.0)


class Chaos:
    """Draws one event after the other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"{world.seed} chaos")
        self._made_at: dict[str, float] = {}
        world.bucket.watchers.append(self._date)

    async def run(self) -> None:
        """Run until cancelled."""
        events, weights = list(self.world.scenario.events), list(self.world.scenario.events.values())
        async with anyio.create_task_group() as tasks:
            while events:
                await anyio.sleep(self.rng.expovariate(1 / self.world.scenario.event_seconds))
                (event,) = self.rng.choices(events, weights)
                self.world.note(f"chaos {event.__name__}")
                tasks.start_soon(event, self)
            await anyio.sleep_forever()

    def end(self) -> None:
        """End temporary events: no process stands still, and every member learns who has the partition."""
        for process in self.world.processes:
            process.weather.rates = Rates(latency=self.world.scenario.latency)
            process.clock_skew = 0.0
            process.resume()
            if process.queue is not None and process.queue is not self.world.broker.owner:
                process.queue.revoke(lost=True)
        self._end_transaction()

    # To processes

    async def crash(self) -> None:
        self._any().crash()

    async def stop(self) -> None:
        """Stop a process in order."""
        committer = self._any().committer
        if committer is not None:
            committer.stop()

    async def stand_still(self) -> None:
        """A process sleeps, from a moment to hours. When its session is over, another one gets the partition."""
        process = self._any()
        seconds = self.rng.choice((0.5, 5.0, 30.0, self.world.scenario.seconds / 4))
        process.stand_still()
        queue = process.queue
        if seconds > self.world.session_seconds:
            await anyio.sleep(self.world.session_seconds)
            seconds -= self.world.session_seconds
            if queue is not None and self.world.broker.owner is queue:
                self._give_to_another(process, told=False)
        await anyio.sleep(seconds)
        process.resume()
        await self._told_later(process)

    async def oversleep(self) -> None:
        """The owner falls asleep at work and wakes hours later, when the versions of that time are cleaned up."""
        owner = self._owner()
        if owner is None or owner.stands_still:
            return
        for _ in range(4):
            self.world.producers.stage(self.world.producers.plain())
            await anyio.sleep(self.rng.uniform(0, 10 * self.world.scenario.rates.latency))
        owner.stand_still()
        await anyio.sleep(self.world.session_seconds)
        self._give_to_another(owner, told=False)
        await anyio.sleep(self.rng.uniform(0, 60))
        self.world.producers.stage(self.world.producers.plain())
        await anyio.sleep(HOUR + 60)
        self.world.producers.stage(self.world.producers.plain())
        await anyio.sleep(self.rng.uniform(5, 60))
        await self.clean_up()
        owner.resume()
        await self._told_later(owner)

    async def clock_jump(self) -> None:
        """One machine's clock is wrong, by minutes or by a month."""
        self._any().clock_skew = self.rng.choice((self.rng.uniform(-HOUR, HOUR), 40 * 24 * HOUR, -40 * 24 * HOUR))

    async def store_outage(self) -> None:
        await self._outage()

    # To the group

    async def hand_over(self) -> None:
        """An orderly rebalance."""
        owner = self._owner()
        if owner is not None:
            self._give_to_another(owner, told=True)

    async def fence(self) -> None:
        """A rebalance that the owner does not notice for a while."""
        owner = self._owner()
        if owner is not None:
            self._give_to_another(owner, told=False)
            await anyio.sleep(self.rng.expovariate(1 / 10))
            await self._told_later(owner)

    async def fence_and_crash(self) -> None:
        """Both members commit for a while; then the old owner dies after creating a version, before it publishes
        anything.
        """
        owner = self._owner()
        if owner is None:
            return
        self._give_to_another(owner, told=False)
        for _ in range(200):
            if all(process.state == "active" for process in self.world.processes):
                break
            await anyio.sleep(0.01)
        owner.crash_after_put = True
        await anyio.sleep(self.rng.expovariate(1 / 5))
        owner.crash_after_put = False
        await self._told_later(owner)

    async def lose_group_offset(self) -> None:
        self.world.broker.group = None

    async def expire_log(self) -> None:
        """Retention deletes acknowledged records."""
        broker = self.world.broker
        if broker.group is not None:
            broker.expire(max(self.rng.randint(broker.log_start, max(broker.group.offset, broker.log_start)), 0))

    async def recreate_topic(self) -> None:
        """The topic is deleted and recreated; the operator adopts the new one some time later."""
        before = self.world.broker.log_end
        self.world.causes |= {"topic_id"}
        self.world.broker.recreate_topic()
        self.world.auditor.new_topic()
        if self.rng.random() < 0.5:
            # A consumer that fetches by the topic's name finds a record at each offset, but of another topic.
            for _ in range(before + 2):
                self.world.producers.stage(self.world.producers.plain())
        await anyio.sleep(self.rng.uniform(0, 30))
        await adopt(self.world)

    async def leave_transaction_open(self) -> None:
        """A producer leaves its Kafka transaction open. Nothing behind its first record can be read until it ends."""
        world, broker = self.world, self.world.broker
        if broker.topic_id is None or broker.transaction is not None:
            return
        for in_transaction in (True, *self.rng.choices((True, False), k=self.rng.randint(0, 4))):
            world.producers.stage(world.producers.plain(), in_transaction=in_transaction)
            await anyio.sleep(self.rng.choice((0.0, self.rng.uniform(0, 1))))
        opened = broker.transaction
        await anyio.sleep(self.rng.uniform(0, world.scenario.seconds / 3))
        if opened is broker.transaction:
            self._end_transaction()

    def _end_transaction(self) -> None:
        """End the open Kafka transaction, as its producer or the broker does it."""
        world = self.world
        if world.broker.transaction is None:
            return
        gone = world.broker.end_transaction(commit=self.rng.random() < 0.5)
        world.note(f"the Kafka transaction ends, without the records {sorted(gone)}")
        world.auditor.are_aborted(gone)

    async def roll_back_log(self) -> None:
        """Kafka loses the end of its log, and producers go on: other records get the same offsets."""
        world, broker = self.world, self.world.broker
        if broker.topic_id is None or broker.log_end - broker.log_start < 4:
            return
        for _ in range(3):
            world.producers.stage(world.producers.plain())
        await anyio.sleep(self.rng.choice((0.0, self.rng.uniform(0, 10 * world.scenario.rates.latency))))
        end = self.rng.randint(max(broker.log_end - 8, broker.log_start), broker.log_end - 1)
        lost = broker.log_end - end
        world.causes |= {"position_beyond_end", "log_rewritten", "position_went_back"}
        epoch, noticed = self.rng.choice(((True, True), (True, False), (False, True)))
        broker.roll_back(end, epoch=epoch, noticed=noticed)
        world.auditor.log_is_rolled_back(end)
        # If only the epoch shows it, a record has to arrive.
        for _ in range(self.rng.choice((0, 1, lost, lost + 3) if noticed else (lost + 3,))):
            world.producers.stage(world.producers.plain())
        await anyio.sleep(self.rng.uniform(15, 30))
        await adopt(world, offset=self.rng.choice((None, end)))

    # To the table

    async def file_comes_or_goes(self) -> None:
        if self.world.flaky_files:
            key = self.rng.choice(self.world.flaky_files)
            if key in self.world.bucket.objects:
                self.world.bucket.delete(key)
            else:
                self.world.bucket.put(key, bytes(100))

    async def damage_old_version(self) -> None:
        """The disk damages another writer's version: a gap in the history, and no reason to refuse anything."""
        world, latest = self.world, self.world.auditor.latest
        foreign = [n for n, seen in world.auditor.versions.items() if n < latest - 3 and not seen.settled.ours]
        names = {key: parse_manifest_name(key.removeprefix(VERSIONS)) for key in world.bucket.list(VERSIONS)}
        keys = [key for key, name in names.items() if name is not None and name.version in foreign]
        if keys:
            key = self.rng.choice(keys)
            world.note(f"{key} is damaged")
            world.bucket.spoil(key, self.rng.choice((b"", b"garbage", world.bucket.objects[key][:-1] + b"?")))
            world.auditor.version_is_damaged(key)

    async def swap_table(self) -> None:
        """The table is deleted and another one made; the operator adopts the queue for it some time later."""
        world = self.world
        if not world.auditor.latest or world.broker.group is None or world.broker.group.offset == 0:
            return
        version = max(world.auditor.latest + self.rng.choice((-5, -1, 0, 0, 1, 5)), 1)
        world.causes |= {"keys_missing", "table_gone", "position_went_back"}
        for _ in range(2):
            # Some puts may arrive during the swap.
            world.producers.stage(world.producers.plain())
        await anyio.sleep(self.rng.choice((0.0, self.rng.uniform(0, 10 * world.scenario.rates.latency))))
        world.auditor.table_is_swapped()
        world.bucket.delete_all()
        world.foreign.put_table(version)
        swaps = world.bucket.swaps
        await anyio.sleep(self.rng.uniform(15, 30))
        if swaps == world.bucket.swaps:  # a later swap has an operator of its own
            await adopt(world)

    async def pause(self) -> None:
        """An operator pauses the queue for a while, in which producers go on."""
        world = self.world
        for _ in range(self.rng.randint(0, 3)):
            world.producers.stage(world.producers.plain())
        await anyio.sleep(self.rng.choice((0.0, self.rng.uniform(0, 10 * world.scenario.rates.latency))))
        now_ms = int(anyio.current_time() * 1000)
        if not await set_pause(world, Pause(reason=f"pause {now_ms}", since_ms=now_ms)):
            return
        for _ in range(self.rng.randint(0, 3)):
            world.producers.stage(world.producers.plain())
            await anyio.sleep(self.rng.uniform(0, world.scenario.seconds / 12))
        await set_pause(world, None)

    async def clean_up(self) -> None:
        """Versions older than an hour are removed, as far as the position stays readable.

        If the only versions that carry it were removed before anything was published, nobody could notice.
        """
        if any(process.state == "starting" for process in self.world.processes):
            return
        names = {key: parse_manifest_name(key.removeprefix(VERSIONS)) for key in self.world.bucket.list(VERSIONS)}
        there = sorted(name.version for name in names.values() if name is not None)
        old = {key for key in names if anyio.current_time() - self._made_at[key] > HOUR}
        kept = [name.version for key, name in names.items() if name is not None and key not in old] or there[-1:]
        if self._carried(kept) == self._carried(there):
            for key, name in names.items():
                if name is not None and name.version not in kept:
                    self.world.bucket.delete(key)

    async def forget(self) -> None:
        """Old versions, the group's offset and a committer are gone: outcomes can be derived from the marks alone."""
        await self.clean_up()
        await self.lose_group_offset()
        await self.crash()

    def _carried(self, versions: list[int]) -> Position | None:
        positions = (self.world.auditor.versions[version].position for version in sorted(versions, reverse=True))
        return highest(position for position in positions if position is not None)

    def _any(self) -> Process:
        return self.rng.choice(self.world.processes)

    def _owner(self) -> Process | None:
        owner = self.world.broker.owner
        return next((p for p in self.world.processes if p.queue is owner and owner is not None), None)

    def _give_to_another(self, process: Process, *, told: bool) -> None:
        others = [p.queue for p in self.world.processes if p is not process and p.queue in self.world.broker.members]
        if others and others[0] is not None:
            self.world.broker.assign(others[0], told=told)

    async def _told_later(self, process: Process) -> None:
        """Its next heartbeat reports that it was removed from the group."""
        queue = process.queue
        await anyio.sleep(self.rng.uniform(0, 5))
        if queue is not None and queue is not self.world.broker.owner:
            queue.revoke(lost=True)

    async def _outage(self) -> None:
        """One process reaches neither store nor broker for a while."""
        process = self._any()
        before, process.weather.rates = process.weather.rates, _DOWN
        await anyio.sleep(self.rng.expovariate(1 / 20))
        process.weather.rates = before

    def _date(self, change: Change, key: str, body: bytes) -> None:
        if change != "deleted":
            self._made_at[key] = anyio.current_time()


Event = Callable[[Chaos], Coroutine[Any, Any, None]]
