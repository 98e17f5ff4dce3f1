"""A version that lands in a table other than the one it was built on is noted, and no other version ever is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from committerd.committer.current_head import CurrentHead
from committerd.committer.head import StartAgain
from committerd.committer.loading import Loading, load
from committerd.committer.members import FormedVersion
from committerd.committer.putting import Putter
from committerd.queue.port import Queue, TopicIdentity
from committerd.queue.position import start_of
from committerd.queue.race import VersionSummary
from committerd.stores.local import LocalStore
from committerd.stores.port import Content, Created, Exists
from committerd.table.prepare import Prepared, prepare
from committerd.table.versions import Table
from committerd.telemetry import Metrics
from committerd_common.messages import Transaction
from committerd_common.paths import manifest_key
from tests.lance.samples import column, fragment, manifest, transaction
from tests.table.scene import ANY, Scene, append, sources

TOPIC = TopicIdentity(cluster_id="c", topic="t", topic_id="i")


class Bench:
    """Version 1 of a table, and a store in which something happens while version 2 is put."""

    def __init__(self, root: Path) -> None:
        self.scene = Scene(root)
        self.now = 0.0
        self.scene.write_files(fragment(0))
        self.scene.write_version(manifest(fragment(0), version=1))
        self.seconds = 0.0

    def replace_below(self) -> None:
        """Another table is made under the same name."""
        self.scene.write_version(manifest(fragment(0), version=1, config={"of": "another table"}))

    def clean_up(self) -> None:
        """Version 1 and its data file are removed; version 2 does not name that file."""
        (self.scene.root / manifest_key(1, self.scene.scheme)).unlink()
        (self.scene.root / "data" / fragment(0).files[0].path).unlink()

    async def put(self, staged: Transaction) -> list[int]:
        """Put version 2, on which something happens; returns the versions that are noted."""
        bench = self

        class Store(LocalStore):
            async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
                answer = await super().put_if_absent(key, body)
                bench.happens()
                bench.now += bench.seconds
                return answer

        table = Table(Store(self.scene.root, durable=False))
        latest = await table.latest()
        prepared = await prepare(table, latest, staged, options=ANY, sources=sources())
        assert isinstance(prepared, Prepared)
        telemetry = Metrics(CollectorRegistry()).of("events")
        putter = Putter(queue=cast(Queue, None), telemetry=telemetry, rng=random.Random(0), recheck_seconds=10.0)
        loaded = await load(table, Loading(monotonic=lambda: self.now))
        head = loaded.head(start_of(TOPIC, 0))
        current = CurrentHead(head, lambda: self.now, loaded.older, 1)
        own = cast(VersionSummary, None)
        formed = FormedVersion(prepared=prepared, own=own, after=head, identity=TOPIC)
        self.happens_before()
        with pytest.raises(StartAgain):
            await putter.put(formed, current)
        for version, end in putter.astray.items():
            assert await table.end(version) == end
        return list(putter.astray)

    def happens(self) -> None:
        """Set by a test."""

    def happens_before(self) -> None:
        """Set by a test."""


def overwrite() -> Transaction:
    schema = [column(0), column(1), column(2)]
    return transaction(1, overwrite=Transaction.Overwrite(fragments=[fragment(0, name="new")], schema=schema))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path / "t")
    made.scene.write_files(fragment(0, name="new"))
    return made


async def test_what_another_table_took_is_noted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.seconds = 2.0  # a look at the version below counts for a second
    monkeypatch.setattr(bench, "happens", bench.replace_below)
    assert await bench.put(append()) == [2]


async def test_what_is_left_of_a_deleted_table_is_noted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "happens_before", bench.clean_up)
    assert await bench.put(append()) == [2]


async def test_a_cleanup_of_all_below_it_is_no_other_table(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process stood still after the put for so long that a cleanup took the version below, and its data."""
    bench.seconds = 7200.0
    monkeypatch.setattr(bench, "happens", bench.clean_up)
    assert await bench.put(overwrite()) == []
