"""Commands that only read, on tables with 10,000 versions of which few or none are of the queue.

What they read is counted, because seconds depend on the machine: `bench/commands.py` measures those.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from bench.long_history import uuid_of, write
from committerd.commands import printing
from committerd.queue.port import TopicIdentity
from committerd.stores.local import LocalStore
from committerd_common.messages import Outcome, Status
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene
from tests.commands.running import answered, commands, run

pytestmark = [pytest.mark.kafka]

_VERSIONS = 10_000
_KNOWN = uuid_of(2**65 + 20)
"""The transaction of version 20, whose outcome is in the topic."""
_SHAPES: dict[str, Callable[[int], bool]] = {
    "the queue at the bottom": lambda version: version <= 40,
    "the queue nowhere": lambda version: False,
    "the queue now and then": lambda version: version <= 40 or version % 3000 == 0,
}
_READS_MAX = 500
_CALLS_MAX = 1_000
"""Calls to the store by a command that reads all versions: it reads them many at once, and each a single time."""
_READS_ANYTHING: dict[str, tuple[str, ...]] = {
    "status": ("status",),
    "explain": ("explain", _KNOWN),
    "dead list": ("dead", "list"),
    "dead show": ("dead", "show", "0"),
    "dead replay": ("dead", "replay", "0"),
    "dead drop": ("dead", "drop", "--below", "0"),
    "topics check": ("topics", "check"),
    "topics transactions": ("topics", "transactions"),
    "datasets": ("datasets",),
    "datasets find": ("datasets", "find", ".*", "--uri", "/lake/{name}.lance"),
    "app list": ("app", "list"),
    "app release": ("app", "release", "query"),
    "position show": ("position", "show"),
}
"""They answer from a few versions."""
_READS_ALL: dict[str, tuple[str, ...]] = {
    "explain": ("explain", str(uuid.UUID(int=1))),
    "audit": ("audit",),
    "position adopt": ("position", "adopt", "--offset", "39"),
    "position rewind": ("position", "rewind", "--offset", "39"),
    "recreate": ("recreate",),
    "maintain": ("maintain", "--dry-run"),
}
"""Their answer depends on each version of another writer: they report their progress."""
_SAYS_SOMETHING_ELSE_FIRST = {"maintain"}
"""What it would rewrite, which it knows before it reads the versions."""
_CHANGES = {
    *("append", "commit", "promote", "pause", "resume", "heartbeat", "probe", "topics create"),
    *("run", "dev", "ingest", "ingest move", "ingest replay", "ingest settle", "tail"),
}
"""They write, or don't end by themselves."""


def test_each_command_is_here() -> None:
    assert commands() <= {*_READS_ANYTHING, *_READS_ALL, *_CHANGES}


@pytest.fixture(scope="module", params=sorted(_SHAPES))
def table(
    request: pytest.FixtureRequest, kafka: KafkaBroker | RunningKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """A table and its topics; its transactions are settled, and expired but for one outcome."""
    of_queue, folder = _SHAPES[request.param], tmp_path_factory.mktemp("versions")
    name = f"t-{uuid.uuid4().hex[:12]}"
    with Scene(kafka=kafka.bootstrap_servers, name=name, folder=folder) as scene:
        assert run(scene, "topics", "create").code == 0
        found = answered(scene, "position", "show")["topic"]
        identity = TopicIdentity(cluster_id=found["cluster_id"], topic=found["topic"], topic_id=found["topic_id"])
        position = write(
            folder / "table.lance", versions=_VERSIONS, members=1, fragments=0, identity=identity, of_queue=of_queue
        )
        if position.next_offset:
            scene.stage(*[b"expired"] * position.next_offset)
            scene.topics.truncate(position.next_offset)
        outcome = Outcome(status=Status.COMMITTED, uuid=_KNOWN, version=20, topic=scene.topics.staged)
        outcome.topic_id = identity.topic_id
        scene.topics.producer.send(scene.topics.outcomes, value=outcome.SerializeToString(), key=_KNOWN.encode())
        scene.topics.producer.flush()
        yield scene


class Reads(list[str]):
    """The keys of the objects that the stores of this process are asked for."""

    calls = 0
    """How often they are asked; a call may be for many keys, which are read at once."""


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    keys = Reads()

    def counting(name: str) -> Callable[..., Awaitable[Any]]:
        real = getattr(LocalStore, name)

        async def counted(self: LocalStore, asked: str | Sequence[str], *more: Any, **named: Any) -> Any:
            keys.calls += 1
            keys.extend([asked] if isinstance(asked, str) else asked)
            return await real(self, asked, *more, **named)

        return counted

    for name in ("get", "get_range", "get_tail", "get_tails", "head"):
        monkeypatch.setattr(LocalStore, name, counting(name))
    return keys


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(_READS_ANYTHING))
def test_it_answers_from_few_versions(name: str, table: Scene, reads: Reads) -> None:
    done = run(table, *_READS_ANYTHING[name])
    assert done.code in (0, 1, 2), done.err
    assert "Traceback" not in done.out + done.err
    assert len(reads) <= _READS_MAX


@pytest.mark.long
@pytest.mark.parametrize("table", ["the queue at the bottom"], indirect=True)
@pytest.mark.parametrize("name", sorted(_READS_ALL))
def test_it_reports_its_progress_while_it_reads_all(
    name: str, table: Scene, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(printing, "_PROGRESS_SECONDS", 0.0)
    done = run(table, *_READS_ALL[name])
    assert "Traceback" not in done.out + done.err
    if name not in _SAYS_SOMETHING_ELSE_FIRST:
        assert f"up to {_VERSIONS} versions" in done.err or f"in all {_VERSIONS} versions" in done.err, done.err
    assert f"of {_VERSIONS} versions" in done.err or f"of about {_VERSIONS}" in done.err, done.err
    assert len(reads) <= _VERSIONS + _READS_MAX
    assert reads.calls <= _CALLS_MAX


@pytest.mark.long
def test_what_they_say_is_right(table: Scene) -> None:
    shown, position = answered(table, "status", code=1), answered(table, "position", "show")
    # This one reads all versions.
    expected = answered(table, "position", "adopt", "--offset", str(position["log_start"]))["before"]
    assert shown["table"]["position"] == position["position"] == expected
    assert shown["table"]["versions_in_all"] == _VERSIONS
    assert answered(table, "explain", _KNOWN)["version"]["version"] == 20
    unknown = answered(table, "explain", str(uuid.UUID(int=1)), code=5)
    assert (unknown["state"], unknown["latest_version"]) == ("no_trace", _VERSIONS)
    # Another writer's, without an outcome.
    assert answered(table, "explain", uuid_of(2**65 + 50))["version"]["version"] == 50
