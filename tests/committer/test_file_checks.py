"""Files of records are checked while the records wait, and a version waits for no file of another one."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Literal, cast

import anyio
import pytest
from prometheus_client import CollectorRegistry

from committerd.committer import forming, intake
from committerd.committer.containing import Containment
from committerd.committer.decoding import Decoder
from committerd.committer.file_checks import FileChecker
from committerd.committer.forming import STALE_MS, FileCheckTiming, Former, FormingOptions
from committerd.committer.head import Head
from committerd.committer.intake import Intake, Pending
from committerd.committer.loading import Loading, load
from committerd.errors import StoreUnavailable
from committerd.queue.grouping import GroupLimits
from committerd.queue.port import Queue, Record
from committerd.queue.position import Position
from committerd.stores.local import LocalStore
from committerd.stores.port import TailOrError
from committerd.table.deletion_vectors import DeletionVectors
from committerd.table.staged_files import CheckedFiles
from committerd.table.versions import Table
from committerd.telemetry import Telemetry
from committerd_common.messages import Transaction
from committerd_common.request import Request
from tests.lance.operations import delete
from tests.lance.samples import fragment, manifest
from tests.table.scene import Scene, append, read_at, world

NOW = datetime(2030, 1, 2, tzinfo=UTC)


class SlowStore(LocalStore):
    """Responds for one object at a time, and for some objects only on command."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, durable=False)
        self.held: dict[str, anyio.Event] = {}
        self.asked: list[str] = []
        self.batches: list[list[str]] = []
        self.fails = False

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        self.asked += keys
        self.batches.append(list(keys))
        fails, self.fails = self.fails, False
        if fails:
            raise StoreUnavailable("503")
        for key in keys:
            if key in self.held:
                await self.held[key].wait()
        return await super().get_tails(keys, size=size)


def record(offset: int, staged: Transaction, *, timestamp_ms: int | None = None, **headers: str) -> Record:
    return Record(
        offset=offset,
        value=staged.SerializeToString(),
        headers=[(name.replace("_", "-"), value.encode()) for name, value in headers.items()],
        timestamp_ms=int(NOW.timestamp() * 1000) if timestamp_ms is None else timestamp_ms,
    )


def staged(name: str) -> Transaction:
    made = append(1, fragment(0, name=name))
    made.uuid = str(uuid.uuid4())
    return made


class Bench:
    """A former, and a checker that checks files for it."""

    def __init__(
        self, scene: Scene, options: FormingOptions | None = None, file_check_timing: FileCheckTiming = "early"
    ) -> None:
        self.scene = scene
        self.store = SlowStore(scene.root)
        self.options = options or FormingOptions()
        self.intake = Intake(cast(Queue, None))
        self.registry = CollectorRegistry()
        decoder, telemetry = Decoder(), Telemetry(self.registry)
        self.deletion_vectors = DeletionVectors()
        self.file_checker = FileChecker(
            self.intake,
            decoder,
            Table(self.store, deletion_vectors=self.deletion_vectors),
            options=self.options,
            file_check_timing=file_check_timing,
            wall_clock=lambda: NOW,
        )
        self.former = Former(
            options=self.options,
            decoder=decoder,
            world=world(random=random.Random(0)),
            telemetry=telemetry,
            containment=Containment(telemetry),
            file_check_timing=file_check_timing,
        )
        self.next_offset = 0

    def arrive(self, *records: Record) -> None:
        self.intake._take(list(records))
        self.intake.notify()

    def arrive_staged(self, *names: str) -> None:
        records = [record(self.next_offset + place, staged(name)) for place, name in enumerate(names)]
        self.next_offset += len(names)
        self.arrive(*records)

    async def head(self) -> Head:
        table = Table(self.store, deletion_vectors=self.deletion_vectors)
        loaded = await load(table, Loading(monotonic=anyio.current_time))
        return loaded.head(Position(cluster_id="c", topic="t", topic_id="i", next_offset=0))

    async def formed(self) -> tuple[list[int], list[str]]:
        """Offsets that the next version commits, and why others are refused."""
        with anyio.fail_after(5):
            formed = await self.former.form(await self.head(), self.intake)
        assert formed is not None
        return [one.offset for one in formed.group.members], [one.reason for one in formed.group.refusals]

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.file_checker.run)
            self.file_checker.switch(on=True)
            yield
            tasks.cancel_scope.cancel()

    async def looked_at(self, pending: Pending) -> CheckedFiles | None:
        with anyio.fail_after(5):
            for _ in range(1000):
                if pending.file_check is not None:
                    break
                await anyio.sleep(0.001)
            assert pending.file_check is not None
            await pending.file_check.wait()
        return pending.checked_files


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path / "t")
    scene.write_versions(1)
    scene.write_files(*(fragment(0, name=name) for name in "abcdef"))
    return scene


@pytest.fixture
def bench(scene: Scene) -> Bench:
    return Bench(scene)


async def test_files_of_all_records_that_wait_are_looked_at_together(bench: Bench) -> None:
    bench.arrive_staged("a", "b", "nothing")
    async with bench.looking():
        checked_files = [await bench.looked_at(pending) for pending in bench.intake.pending]
        assert [one and one.sizes for one in checked_files] == [{"data/a.lance": 100}, {"data/b.lance": 100}, {}]
        asked = list(bench.store.asked)
        assert asked == ["data/a.lance", "data/b.lance", "data/nothing.lance"]
        assert await bench.formed() == ([0, 1], ["missing_file"])
        assert bench.store.asked == [*asked, "data/nothing.lance"]


async def test_further_records_are_looked_at_as_those_before_them_are_settled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing new comes from Kafka, which delivers nothing while too much waits."""
    bench.arrive_staged("a", "b", "c")
    monkeypatch.setattr(intake, "DECODED_BYTES_MAX", 2 * bench.intake.pending[0].decoded_bytes_max)
    async with bench.looking():
        last = bench.intake.pending[2]
        await bench.looked_at(bench.intake.pending[1])
        await anyio.sleep(0.01)
        assert last.file_check is None
        bench.intake.settle(Position(cluster_id="c", topic="t", topic_id="i", next_offset=1))
        assert await bench.looked_at(last) is not None


async def test_a_version_does_not_wait_for_files_of_later_records(bench: Bench) -> None:
    bench.store.held["data/b.lance"] = anyio.Event()
    async with bench.looking():
        bench.arrive_staged("a")
        await bench.looked_at(bench.intake.pending[0])
        bench.arrive_staged("b", "c")
        assert await bench.formed() == ([0], [])
        bench.store.held["data/b.lance"].set()
        await bench.looked_at(bench.intake.pending[2])
        assert await bench.formed() == ([0, 1, 2], [])


async def test_a_version_waits_for_the_files_of_its_first_record(bench: Bench) -> None:
    bench.store.held["data/a.lance"] = anyio.Event()
    async with bench.looking(), anyio.create_task_group() as tasks:
        bench.arrive_staged("a")
        formed: list[object] = []

        async def form() -> None:
            formed.append(await bench.formed())

        tasks.start_soon(form)
        await anyio.sleep(0.05)
        assert formed == []
        bench.store.held["data/a.lance"].set()
    assert formed == [([0], [])]
    assert bench.store.asked == ["data/a.lance"]


async def test_a_version_that_will_be_full_waits_for_the_files_of_all(scene: Scene) -> None:
    bench = Bench(scene, FormingOptions(limits=GroupLimits(records=3)))
    bench.store.held["data/c.lance"] = anyio.Event()
    async with bench.looking():
        bench.arrive_staged("a", "b")
        await bench.looked_at(bench.intake.pending[1])
        bench.arrive_staged("c", "d")

        async def let_go() -> None:
            await anyio.sleep(0.05)
            bench.store.held["data/c.lance"].set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(let_go)
            assert await bench.formed() == ([0, 1, 2], [])


async def test_a_file_that_comes_while_its_record_waits_is_found(bench: Bench) -> None:
    bench.arrive_staged("late")
    async with bench.looking():
        checked_files = await bench.looked_at(bench.intake.pending[0])
        assert checked_files is not None
        assert checked_files.sizes == {}
        bench.scene.write_files(fragment(0, name="late"))
        assert await bench.formed() == ([0], [])


@pytest.mark.parametrize("file_check_timing", ["early", "together"])
async def test_missing_files_of_a_version_are_looked_for_in_one_go(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, file_check_timing: FileCheckTiming
) -> None:
    """Otherwise each bad record would keep those behind it waiting for a round trip to the store."""
    bench, alone = Bench(scene, file_check_timing=file_check_timing), list[str]()

    async def head(store: SlowStore, key: str) -> int | None:
        alone.append(key)
        return await LocalStore.head(store, key)

    bench.arrive_staged("a", *(f"nothing{number}" for number in range(20)), "b")
    async with bench.looking():
        if file_check_timing == "early":
            await bench.looked_at(bench.intake.pending[-1])
        monkeypatch.setattr(SlowStore, "head", head)
        bench.store.batches.clear()
        assert await bench.formed() == ([0, 21], ["missing_file"] * 20)
    assert alone == []
    assert [len(batch) for batch in bench.store.batches] == [20 if file_check_timing == "early" else 22]


async def test_what_was_found_long_ago_is_looked_at_again(bench: Bench) -> None:
    bench.arrive_staged("a")
    async with bench.looking():
        checked_files = await bench.looked_at(bench.intake.pending[0])
        assert checked_files is not None
        checked_files.at -= 301
        bench.scene.path("data/a.lance").unlink()
        assert await bench.formed() == ([], ["missing_file"])


async def test_a_store_that_fails_is_asked_again_when_the_record_is_judged(bench: Bench) -> None:
    bench.store.fails = True
    bench.arrive_staged("a")
    async with bench.looking():
        assert await bench.looked_at(bench.intake.pending[0]) is None
        assert await bench.formed() == ([0], [])


async def test_records_that_are_wrong_hold_up_no_others(bench: Bench) -> None:
    bench.arrive(Record(offset=0, value=b"nonsense"), record(1, staged("a")))
    async with bench.looking():
        assert await bench.looked_at(bench.intake.pending[0]) is None
        assert await bench.formed() == ([1], ["record_undecodable"])


async def test_claim_checks_are_not_read_ahead(bench: Bench) -> None:
    bench.arrive(record(0, staged("a")), record(1, staged("b"), transaction_file="x", transaction_sha256="0" * 64))
    async with bench.looking():
        await bench.looked_at(bench.intake.pending[0])
        await anyio.sleep(0.01)
        assert bench.intake.pending[1].file_check is None
        assert await bench.formed() == ([0], ["header_invalid"])


@pytest.mark.parametrize(("count", "reads"), [(20, [20]), (300, [256, 44])])
async def test_small_claim_checks_of_a_version_are_read_in_one_go_and_no_more_than_memory_allows(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, count: int, reads: list[int]
) -> None:
    bench, calls, several = Bench(scene), list[int](), SlowStore.get_tails
    body = staged("a").SerializeToString()
    scene.path("_transactions/3.txn").write_bytes(body)
    claims = [
        record(at, staged("a"), transaction_file=f"{at}.txn", transaction_sha256=sha256(body).hexdigest())
        for at in range(count)
    ]
    bench.arrive(*(replace(claim, value=b"") for claim in claims))

    async def get_tails(store: SlowStore, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        if keys[0].startswith("_transactions/"):
            calls.append(len(keys))
        return await several(store, keys, size=size)

    async def get_range(store: LocalStore, key: str, start: int, end: int) -> bytes | None:
        raise AssertionError(f"{key} is read alone")

    monkeypatch.setattr(SlowStore, "get_tails", get_tails)
    monkeypatch.setattr(LocalStore, "get_range", get_range)
    assert await bench.formed() == ([3], ["claim_missing"] * (count - 1))
    assert calls == reads


async def test_nobody_looks_while_there_is_no_table(bench: Bench) -> None:
    async with bench.looking():
        bench.file_checker.switch(on=False)
        bench.arrive_staged("a")
        await anyio.sleep(0.01)
        assert bench.intake.pending[0].file_check is None
        bench.file_checker.switch(on=True)
        await bench.looked_at(bench.intake.pending[0])


async def test_only_stale_records_are_looked_at_where_the_operator_says_so(scene: Scene) -> None:
    bench = Bench(scene, FormingOptions(verify_files="stale"))
    old = int((NOW - timedelta(milliseconds=STALE_MS + 1)).timestamp() * 1000)
    bench.arrive(record(0, staged("a"), timestamp_ms=old), record(1, staged("b")))
    async with bench.looking():
        for pending in bench.intake.pending:
            await bench.looked_at(pending)
    assert bench.store.asked == ["data/a.lance"]


async def test_none_are_looked_at_where_the_operator_says_never(scene: Scene) -> None:
    bench = Bench(scene, FormingOptions(verify_files="never"))
    async with bench.looking():
        bench.arrive_staged("nothing")
        await bench.looked_at(bench.intake.pending[0])
        assert await bench.formed() == ([0], [])
    assert bench.store.asked == []


class TestDeletionFiles:
    """They are needed to judge a Delete or an Update, whether or not files are verified."""

    @pytest.fixture
    def read(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """The keys of the deletion files that were read, by call of the store."""
        calls: list[list[str]] = []
        several, one = SlowStore.get_tails, LocalStore.get_range

        async def get_tails(store: SlowStore, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
            if keys and keys[0].startswith("_deletions/"):
                calls.append(list(keys))
            return await several(store, keys, size=size)

        async def get_range(store: LocalStore, key: str, start: int, end: int) -> bytes | None:
            if key.startswith("_deletions/"):
                calls.append([key])
            return await one(store, key, start, end)

        monkeypatch.setattr(SlowStore, "get_tails", get_tails)
        monkeypatch.setattr(LocalStore, "get_range", get_range)
        return calls

    def deletes(self, scene: Scene) -> list[Record]:
        scene.write_version(manifest(*map(fragment, range(3)), version=1))
        changed = [fragment(number, deleted=1) for number in range(3)]
        scene.write_files(*changed)
        made = [read_at(delete(one), 1) for one in changed]
        for one in made:
            one.uuid = str(uuid.uuid4())
        return [record(offset, one) for offset, one in enumerate(made)]

    @pytest.mark.parametrize("verify_files", ["always", "stale", "never"])
    async def test_are_read_while_their_records_wait(
        self, scene: Scene, read: list[list[str]], verify_files: Literal["always", "stale", "never"]
    ) -> None:
        bench = Bench(scene, FormingOptions(verify_files=verify_files))
        bench.arrive(*self.deletes(scene))
        async with bench.looking():
            for pending in bench.intake.pending:
                await bench.looked_at(pending)
            assert len([key for call in read for key in call]) == 3
            read.clear()
            assert await bench.formed() == ([0, 1, 2], [])
        assert read == []

    @pytest.mark.parametrize("file_check_timing", ["early", "together"])
    async def test_that_are_missing_or_damaged_are_read_in_one_go(
        self, scene: Scene, read: list[list[str]], file_check_timing: FileCheckTiming
    ) -> None:
        bench = Bench(scene, file_check_timing=file_check_timing)
        bench.arrive(*self.deletes(scene))
        scene.path("_deletions/0-1-1.bin").unlink()
        scene.path("_deletions/2-1-1.bin").write_bytes(b"garbage")
        async with bench.looking():
            if file_check_timing == "early":
                await bench.looked_at(bench.intake.pending[-1])
                read.clear()
            assert await bench.formed() == ([1], ["missing_file", "deletion_file"])
        assert [len(call) for call in read] == [2 if file_check_timing == "early" else 3]

    def large_delete(self, scene: Scene) -> Record:
        """It deletes a row of each of 600 fragments."""
        scene.write_version(manifest(*map(fragment, range(600)), version=1))
        changed = [fragment(number, deleted=1) for number in range(600)]
        scene.write_files(*changed)
        return record(0, read_at(delete(*changed), 1))

    async def test_of_one_record_are_read_many_at_once(self, scene: Scene, read: list[list[str]]) -> None:
        bench = Bench(scene)
        bench.arrive(self.large_delete(scene))
        async with bench.looking():
            await bench.looked_at(bench.intake.pending[0])
        assert [len(call) for call in read] == [256, 256, 88]

    async def test_of_a_record_that_was_not_looked_at_are_read_many_at_once(
        self, scene: Scene, read: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def nothing(*arguments: object, **options: object) -> None:
            raise StoreUnavailable("503")

        monkeypatch.setattr(forming, "check_files", nothing)
        bench = Bench(scene, file_check_timing="together")
        bench.arrive(self.large_delete(scene))
        assert await bench.formed() == ([0], [])
        assert [len(call) for call in read] == [256, 256, 88]

    @pytest.mark.parametrize("verify_files", ["always", "stale", "never"])
    async def test_of_a_version_are_read_in_one_go_where_the_store_answers_at_once(
        self, scene: Scene, read: list[list[str]], verify_files: Literal["always", "stale", "never"]
    ) -> None:
        bench = Bench(scene, FormingOptions(verify_files=verify_files), "together")
        bench.arrive(*self.deletes(scene))
        assert await bench.formed() == ([0, 1, 2], [])
        assert [len(call) for call in read] == [3]


@pytest.mark.parametrize(("times", "offsets"), [(0, [0]), (1, [0]), (2, [0, 1]), (3, [0, 1, 2])])
async def test_no_more_is_decoded_ahead_than_fits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int, offsets: list[int]
) -> None:
    bench.arrive_staged("a", "b", "c")
    first, *_ = bench.intake.pending
    monkeypatch.setattr(intake, "DECODED_BYTES_MAX", times * first.decoded_bytes_max)
    assert [one.offset for one in bench.intake.unchecked(most=10)] == offsets
    assert [one.offset for one in bench.intake.unchecked(most=2)] == offsets[:2]
    first.file_check = anyio.Event()
    assert [one.offset for one in bench.intake.unchecked(most=10)] == offsets[1:]


async def test_a_version_settles_no_more_than_may_be_decoded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused records count too."""
    bench = Bench(scene, file_check_timing="together")
    bench.arrive_staged("nothing", "nothing", "nothing")
    first, *_ = bench.intake.pending
    monkeypatch.setattr(forming, "DECODED_BYTES_MAX", 2 * first.decoded_bytes_max)
    assert await bench.formed() == ([], ["missing_file", "missing_file"])


async def test_what_is_judged_before_it_was_looked_at_is_looked_at_then(bench: Bench) -> None:
    bench.arrive_staged("a", "nothing")
    assert await bench.formed() == ([0], [])
    assert isinstance(bench.intake.pending[0].decoded, Request)


class TestAStoreThatAnswersAtOnce:
    """All files of a version are checked in one go, when it is formed."""

    @pytest.fixture
    def bench(self, scene: Scene) -> Bench:
        return Bench(scene, file_check_timing="together")

    async def test_is_asked_once_for_a_version(self, bench: Bench) -> None:
        await bench.file_checker.run()
        bench.arrive_staged("a", "nothing", "b")
        bench.store.batches.clear()
        assert await bench.formed() == ([0, 2], ["missing_file"])
        assert bench.store.batches == [["data/a.lance", "data/nothing.lance", "data/b.lance"]]
        # The next time it is asked for the missing files.
        assert await bench.formed() == ([0, 2], ["missing_file"])
        assert bench.store.batches[1:] == [["data/nothing.lance"]]

    async def test_that_fails_is_asked_again_when_a_record_is_judged(self, bench: Bench) -> None:
        bench.store.fails = True
        bench.arrive_staged("a")
        assert await bench.formed() == ([0], [])

    async def test_is_not_asked_for_the_files_of_young_records_where_only_stale_ones_count(self, scene: Scene) -> None:
        bench = Bench(scene, FormingOptions(verify_files="stale"), "together")
        bench.arrive_staged("nothing")
        assert await bench.formed() == ([0], [])
        assert bench.store.batches == []

    async def test_reads_claim_checks_with_the_version(self, bench: Bench) -> None:
        bench.arrive(
            record(0, staged("a")),
            Record(
                offset=1,
                value=b"",
                headers=[("transaction-file", b"x"), ("transaction-sha256", b"0" * 64)],
                timestamp_ms=int(NOW.timestamp() * 1000),
            ),
        )
        assert await bench.formed() == ([0], ["claim_missing"])
        assert bench.store.batches == [["_transactions/x"], ["data/a.lance"]]
