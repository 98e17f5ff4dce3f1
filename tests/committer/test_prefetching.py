"""What judging a record needs is fetched while it waits, and a version waits for the facts of no other record."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from committerd.committer import prefetching
from committerd.committer.deciding import STALE_MS, DecideOptions
from committerd.lance.format.decoded_size import decoded_bytes_max
from committerd.queue.dedupe import Refused
from committerd.queue.offsets import Offsets
from committerd.queue.port import Record
from committerd.queue.position import Position
from committerd.table.needs import FoundFile, Staged
from committerd.table.staged_files import needed_ahead
from committerd_common.messages import Transaction
from tests.committer.bench import NOW, Bench, record, staged, until
from tests.lance.operations import delete
from tests.lance.samples import fragment, manifest
from tests.table.scene import Scene, read_at


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path / "t")
    scene.write_versions(1)
    scene.write_files(*(fragment(0, name=name) for name in "abcdef"))
    return scene


@pytest.fixture
def bench(scene: Scene) -> Bench:
    return Bench(scene)


def looked_at(bench: Bench) -> list[str]:
    """The data files and deletion files that were looked at."""
    return [key for key in bench.store.asked if key.startswith(("data/", "_deletions/"))]


async def test_files_of_all_records_that_wait_are_looked_at_together_and_once(bench: Bench) -> None:
    bench.arrive_staged("a", "b", "nothing")
    async with bench.prefetching():
        known = [await bench.prefetched(pending) for pending in bench.intake.pending]
        sizes = [[one and isinstance(one, FoundFile) and one.size for one in of.facts.files.values()] for of in known]
        assert sizes == [[100], [100], [None]]
        assert bench.store.batches == [["data/a.lance", "data/b.lance", "data/nothing.lance"]]
        assert await bench.settled() == ([0, 1], ["missing_file"])
        assert len(looked_at(bench)) == 3


async def test_a_version_that_nobody_has_prefetched_for_looks_at_all_files_in_one_go(bench: Bench) -> None:
    bench.arrive_staged("a", *(f"nothing{number}" for number in range(20)), "b")
    assert await bench.settled() == ([0, 21], ["missing_file"] * 20)
    assert [len(batch) for batch in bench.store.batches] == [22]
    assert await bench.settled() == ([0, 21], ["missing_file"] * 20)
    assert len(bench.store.batches) == 1


async def test_few_records_of_one_producer_do_not_wait_for_the_files_of_many_of_another(bench: Bench) -> None:
    bench.store.held["data/a.lance"] = anyio.Event()
    many = [record(offset, staged("a"), producer="many") for offset in range(prefetching._RECORDS_AT_ONCE)]
    few = [record(len(many) + place, staged(name), producer=name) for place, name in enumerate("bcd")]
    bench.arrive(*many, *few)
    async with bench.prefetching():
        assert (await bench.prefetched(bench.intake.pending[-1])).facts.files
        await until(lambda: len(bench.store.batches) == 2)  # the few may be done before the store is asked for the many
        assert not bench.prefetcher.is_ready(bench.intake.pending[0])
        assert sorted(bench.store.batches) == [["data/a.lance"], ["data/b.lance", "data/c.lance", "data/d.lance"]]
        bench.store.held["data/a.lance"].set()
        await bench.prefetched(bench.intake.pending[0])


async def test_short_lines_are_prefetched_while_all_that_a_flood_may_have_hangs(bench: Bench) -> None:
    bench.store.held["data/a.lance"] = anyio.Event()
    count = 2 * prefetching._LONG_BATCHES_AT_ONCE * prefetching._RECORDS_AT_ONCE
    flood = [record(offset, staged("a"), producer="many") for offset in range(count)]
    bench.arrive(*flood, record(count, staged("b"), producer="few"))
    async with bench.prefetching():
        assert (await bench.prefetched(bench.intake.pending[-1])).facts.files
        await until(lambda: bench.store.asked.count("data/a.lance") == prefetching._LONG_BATCHES_AT_ONCE)
        bench.arrive(record(count + 1, staged("c"), producer="few"))
        assert (await bench.prefetched(bench.intake.pending[-1])).facts.files
        assert not bench.prefetcher.is_ready(bench.intake.pending[0])
        assert bench.store.asked.count("data/a.lance") == prefetching._LONG_BATCHES_AT_ONCE
        bench.store.held["data/a.lance"].set()
        await until(lambda: all(map(bench.prefetcher.is_ready, bench.intake.pending)))


async def test_a_flood_alone_leaves_a_batch_for_others(bench: Bench) -> None:
    bench.store.held["data/a.lance"] = anyio.Event()
    count = 2 * prefetching._LONG_BATCHES_AT_ONCE * prefetching._RECORDS_AT_ONCE
    bench.arrive(*(record(offset, staged("a"), producer="many") for offset in range(count)))
    async with bench.prefetching():
        await until(lambda: len(bench.store.batches) == prefetching._LONG_BATCHES_AT_ONCE)
        bench.arrive(record(count, staged("b"), producer="few"))
        assert (await bench.prefetched(bench.intake.pending[-1])).facts.files


async def test_short_lines_are_prefetched_beside_a_flood_that_fills_the_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And stay so, when the records at the front are looked for again."""
    flood = [record(offset, staged("a"), producer="many") for offset in range(prefetching._RECORDS_AT_ONCE)]
    monkeypatch.setattr(prefetching, "DECODED_BYTES_MAX", 20 * decoded_bytes_max(len(flood[0].value)))
    bench.arrive(*flood)
    async with bench.prefetching():
        await until(lambda: bench.prefetcher.is_ready(bench.intake.pending[19]))
        for place in range(5):
            bench.arrive(record(len(flood) + place, staged("b"), producer="few"))
            assert (await bench.prefetched(bench.intake.pending[-1])).facts.files
        assert all(map(bench.prefetcher.is_ready, list(bench.intake.pending)[-5:]))
        assert bench.store.asked.count("data/b.lance") == 5


async def test_a_batch_of_large_records_has_few_of_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(offset, staged(name)) for offset, name in enumerate("abcdef")]
    monkeypatch.setattr(prefetching, "_BYTES_AT_ONCE", 1)
    monkeypatch.setattr(prefetching, "_LARGE_AT_ONCE", 2)
    bench.arrive(*records)
    async with bench.prefetching():
        await until(lambda: all(map(bench.prefetcher.is_ready, bench.intake.pending)))
    assert [len(batch) for batch in bench.store.batches] == [2, 2, 2]


async def test_records_of_several_floods_are_prefetched_in_full_batches(bench: Bench) -> None:
    count = 2 * prefetching._RECORDS_AT_ONCE
    records = [record(offset, staged("a"), producer=f"flood {offset % 2}") for offset in range(2 * count)]
    bench.arrive(*records)
    async with bench.prefetching():
        await until(lambda: all(map(bench.prefetcher.is_ready, bench.intake.pending)))
    assert len(bench.store.batches) == 4


async def test_further_records_are_prefetched_as_those_before_them_are_settled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing new comes from Kafka, which delivers nothing while too much waits."""
    bench.arrive_staged("a", "b", "c")
    size = decoded_bytes_max(len(bench.intake.pending[0].record.value))
    monkeypatch.setattr(prefetching, "DECODED_BYTES_MAX", 2 * size)
    async with bench.prefetching():
        last = bench.intake.pending[2]
        await bench.prefetched(bench.intake.pending[1])
        await anyio.sleep(0.01)
        assert not bench.prefetcher.is_ready(last)
        bench.intake.settle(Position(cluster_id="c", topic="t", topic_id="i", next_offset=1))
        await bench.prefetched(last)


async def test_a_version_does_not_wait_for_files_of_later_records(bench: Bench) -> None:
    bench.store.held["data/b.lance"] = anyio.Event()
    async with bench.prefetching():
        bench.arrive_staged("a")
        await bench.prefetched(bench.intake.pending[0])
        bench.arrive_staged("b", "c")
        assert await bench.settled() == ([0], [])
        bench.store.held["data/b.lance"].set()
        await bench.prefetched(bench.intake.pending[2])
        assert await bench.settled() == ([0, 1, 2], [])


async def test_a_version_waits_for_the_files_of_its_first_record(bench: Bench) -> None:
    bench.store.held["data/a.lance"] = anyio.Event()
    async with bench.prefetching(), anyio.create_task_group() as tasks:
        bench.arrive_staged("a")
        settled: list[object] = []

        async def settle() -> None:
            settled.append(await bench.settled())

        tasks.start_soon(settle)
        await anyio.sleep(0.05)
        assert settled == []
        bench.store.held["data/a.lance"].set()
    assert settled == [([0], [])]
    assert looked_at(bench) == ["data/a.lance"]


async def test_what_was_found_long_ago_is_looked_at_again(bench: Bench) -> None:
    bench.arrive_staged("a")
    async with bench.prefetching():
        known = await bench.prefetched(bench.intake.pending[0])
        bench.prefetcher._found[known.pending.number] = replace(known, at=known.at - 301)
        bench.scene.path("data/a.lance").unlink()
        assert await bench.settled() == ([], ["missing_file"])


async def test_a_store_that_fails_is_asked_again_when_the_record_is_the_first(bench: Bench) -> None:
    bench.store.fails = True
    bench.arrive_staged("a")
    async with bench.prefetching():
        await until(lambda: bool(bench.store.batches))
        await anyio.sleep(0.01)
        assert len(bench.store.batches) == 1
        bench.store.fails = False
        assert await bench.settled() == ([0], [])


async def test_an_error_of_one_record_leaves_the_others_to_be_judged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows again when that record is judged, and refuses it alone."""
    listed = needed_ahead

    def failing(transaction: Transaction, *arguments: Any, **named: Any) -> Staged:
        if transaction.append.fragments[0].files[0].path == "b.lance":
            raise RecursionError("deep")
        return listed(transaction, *arguments, **named)

    monkeypatch.setattr(prefetching, "needed_ahead", failing)
    bench.arrive_staged("a", "b", "nothing")
    assert await bench.settled() == ([0, 1], ["missing_file"])


async def test_records_that_are_wrong_hold_up_no_others(bench: Bench) -> None:
    bench.arrive(Record(offset=0, value=b"nonsense"), record(1, staged("a")))
    async with bench.prefetching():
        assert isinstance((await bench.prefetched(bench.intake.pending[0])).decoded, Refused)
        assert await bench.settled() == ([1], ["record_undecodable"])


def claims(scene: Scene, count: int, body: bytes) -> list[Record]:
    """Claim checks, all of the same file."""
    scene.path("_transactions/3.txn").write_bytes(body)
    made = [
        record(at, staged("a"), transaction_file=f"{at}.txn", transaction_sha256=sha256(body).hexdigest())
        for at in range(count)
    ]
    return [replace(one, value=b"") for one in made]


@pytest.mark.parametrize("count", [20, 600])
async def test_small_claim_checks_are_read_many_at_once(scene: Scene, count: int) -> None:
    bench = Bench(scene)
    bench.arrive(*claims(scene, count, staged("a").SerializeToString()))
    async with bench.prefetching():
        for pending in bench.intake.pending:
            await bench.prefetched(pending)
        assert await bench.settled() == ([3], ["claim_missing"] * (count - 1))
    claimed = [batch for batch in bench.store.batches if batch[0].startswith("_transactions/")]
    assert len(claimed) <= 1 + count // 50
    assert sum(map(len, claimed)) == count


async def test_a_large_claim_check_is_read_when_it_is_the_first(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction of any size then takes the memory of a version for itself."""
    monkeypatch.setattr("committerd.table.deletion_files.SMALL_BODY_BYTES", 10)
    bench = Bench(scene)
    bench.arrive(*claims(scene, 5, staged("a").SerializeToString())[2:4], record(5, staged("b")))
    async with bench.prefetching():
        missing, _, small = bench.intake.pending
        await bench.prefetched(missing)
        await bench.prefetched(small)
        assert not bench.prefetcher.is_ready(bench.intake.pending[1])
        assert await bench.settled() == ([], ["claim_missing"])
        bench.intake.settle(Position(cluster_id="c", topic="t", topic_id="i", next_offset=3))
        assert await bench.settled() == ([3, 5], [])


async def test_nothing_is_prefetched_while_there_is_no_table(bench: Bench) -> None:
    async with bench.prefetching():
        bench.prefetcher.switch(on=False)
        bench.arrive_staged("a")
        await anyio.sleep(0.01)
        assert not bench.prefetcher.is_ready(bench.intake.pending[0])
        bench.prefetcher.switch(on=True)
        await bench.prefetched(bench.intake.pending[0])


async def test_only_files_of_stale_records_are_looked_at_where_the_operator_says_so(scene: Scene) -> None:
    bench = Bench(scene, DecideOptions(verify_files="stale"))
    old = int((NOW - timedelta(milliseconds=STALE_MS + 1)).timestamp() * 1000)
    bench.arrive(record(0, staged("a"), timestamp_ms=old), record(1, staged("nothing")))
    async with bench.prefetching():
        for pending in bench.intake.pending:
            await bench.prefetched(pending)
        assert await bench.settled() == ([0, 1], [])
    assert looked_at(bench) == ["data/a.lance"]


async def test_none_are_looked_at_where_the_operator_says_never(scene: Scene) -> None:
    bench = Bench(scene, DecideOptions(verify_files="never"))
    bench.arrive_staged("nothing")
    assert await bench.settled() == ([0], [])
    assert looked_at(bench) == []


class TestDeletionFiles:
    """They are needed to judge a Delete or an Update, whether or not files are verified."""

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
        self, scene: Scene, verify_files: Literal["always", "stale", "never"]
    ) -> None:
        bench = Bench(scene, DecideOptions(verify_files=verify_files))
        bench.arrive(*self.deletes(scene))
        async with bench.prefetching():
            for pending in bench.intake.pending:
                await bench.prefetched(pending)
            assert len(looked_at(bench)) == 3
            assert await bench.settled() == ([0, 1, 2], [])
        assert len(looked_at(bench)) == 3

    async def test_that_are_missing_or_damaged_are_read_in_one_go(self, scene: Scene) -> None:
        bench = Bench(scene)
        bench.arrive(*self.deletes(scene))
        scene.path("_deletions/0-1-1.bin").unlink()
        scene.path("_deletions/2-1-1.bin").write_bytes(b"garbage")
        assert await bench.settled() == ([1], ["missing_file", "deletion_file"])
        assert [len(batch) for batch in bench.store.batches] == [3]

    async def test_of_one_record_are_read_many_at_once(self, scene: Scene) -> None:
        """It deletes a row of each of 600 fragments."""
        scene.write_version(manifest(*map(fragment, range(600)), version=1))
        changed = [fragment(number, deleted=1) for number in range(600)]
        scene.write_files(*changed)
        bench = Bench(scene)
        bench.arrive(record(0, read_at(delete(*changed), 1)))
        assert await bench.settled() == ([0], [])
        assert [len(batch) for batch in bench.store.batches] == [256, 256, 88]


@pytest.mark.parametrize(("times", "offsets"), [(0, [0]), (1, [0]), (2, [0, 1]), (3, [0, 1, 2])])
async def test_no_more_is_decoded_at_the_same_time_than_fits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int, offsets: Sequence[int]
) -> None:
    """Refused records count too."""
    bench.arrive_staged("nothing", "nothing", "nothing")
    size = decoded_bytes_max(len(bench.intake.pending[0].record.value))
    monkeypatch.setattr(prefetching, "DECODED_BYTES_MAX", times * size)
    assert await bench.settled() == ([], ["missing_file"] * len(offsets))
    assert [bench.prefetcher.is_ready(one) for one in bench.intake.pending] == [at in offsets for at in range(3)]


async def test_what_is_known_of_settled_records_is_forgotten(bench: Bench) -> None:
    bench.arrive_staged("a", "b", "c")
    await bench.settled()
    bench.intake.settle(Position(cluster_id="c", topic="t", topic_id="i", next_offset=2))
    await bench.settled()
    assert list(bench.prefetcher._found) == [3]


async def test_what_is_known_of_settled_records_is_forgotten_in_any_order(bench: Bench) -> None:
    """The last record was prefetched first, and the second one is settled ahead of the first."""
    bench.arrive_staged("a", "b", "c")
    await bench.prefetcher.ready(list(bench.intake.pending)[2:])
    await bench.settled()
    bench.intake.settle(Position(cluster_id="c", topic="t", topic_id="i", next_offset=0, settled=Offsets.of([1])))
    await bench.settled()
    assert sorted(bench.prefetcher._found) == [1, 3]


async def test_records_whose_turn_comes_later_are_forgotten_where_others_need_the_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of a flood were decoded first; then it is the turn of another producer."""
    bench.arrive(*(record(at, staged("a"), producer="flood") for at in range(300)))
    size = decoded_bytes_max(len(bench.intake.pending[0].record.value))
    monkeypatch.setattr(prefetching, "DECODED_BYTES_MAX", 3 * size)
    async with bench.prefetching():
        await bench.prefetched(bench.intake.pending[2])
        bench.arrive(*(record(300 + at, staged("a"), producer="other") for at in range(5)))
        bench.intake.settle(Position(cluster_id="c", topic="t", topic_id="i", next_offset=1))
        others = [pending.number for pending in bench.intake.pending if pending.producer == b"other"]
        await until(lambda: sorted(bench.prefetcher._found) == others[:3])
