"""How long commands take to answer on a table with 10,000 versions, of which the newest of the queue is version 40.

    python -m bench.commands [PART OF A NAME...]

Prints a row for each command, with the seconds until its last and until its first words, as a process of its own: on a
local disk, and on S3 with 60 ms added to every response. The committer does not run. The worst case is that of other
writers, whose versions say nothing of the queue. `tail`, which does not end, is stopped after its first outcome.
`append`, `commit` and `heartbeat` wait for a committer, `promote` for no queue, and `run`, `dev` and `ingest` don't
answer; they are not measured.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from bench.long_history import uuid_of, write
from bench.proxied_s3 import ProxiedS3
from committerd.queue.port import TopicIdentity
from committerd_common.messages import Outcome, Status
from harness.kafka import KafkaBroker
from harness.places import StorePlace
from harness.scene import Scene

VERSIONS, LAST_OF_THE_QUEUE, LATENCY_MS = 10_000, 40, 60
COMMANDS: Mapping[str, Sequence[str]] = {
    "status": ("status",),
    "explain, version 20": ("explain", uuid_of(2**65 + 20)),
    "explain, version 9,000": ("explain", uuid_of(2**65 + 9_000)),
    "explain, unknown": ("explain", str(uuid.UUID(int=1))),
    "tail": ("tail", "--since", "1h"),
    "datasets": ("datasets",),
    "datasets find": ("datasets", "find", ".*", "--uri", "/lake/{name}.lance"),
    "dead list": ("dead", "list"),
    "topics check": ("topics", "check"),
    "topics transactions": ("topics", "transactions"),
    "app list": ("app", "list"),
    "app release": ("app", "release", "query"),
    "position show": ("position", "show"),
    "position adopt": ("position", "adopt", "--offset", "39"),
    "position rewind": ("position", "rewind", "--offset", "0"),
    "ingest move": ("ingest", "move", "raw", "0", "--offset", "earliest"),
    "ingest settle": ("ingest", "settle", "files", "--rows", "missing"),
    "ingest replay": ("ingest", "replay"),
    "recreate": ("recreate",),
    "audit": ("audit",),
    "maintain --dry-run": ("maintain", "--dry-run"),
    "probe": ("probe",),
    "pause": ("pause", "--reason", "a measurement"),
    "resume, paused before": ("resume",),
}
"""In this order: the last ones write. Those that can change something are dry runs."""
_ENDLESS = frozenset({"tail"})
_TOPICS = {"INGEST__TOPICS": "raw"}
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "datasets find": {"DAEMON__DATASETS_FILE": "/tmp/none.json"},
    "ingest move": _TOPICS,
    "ingest replay": _TOPICS,
    "ingest settle": {"INGEST__SOURCE": "files", "INGEST__FOLDER": "/tmp"},
}


class _Took(NamedTuple):
    """Seconds since the command began."""

    first: float
    """Until it said anything."""
    all: float
    code: int
    """The exit code."""

    def __str__(self) -> str:
        code = f", exit {self.code}" if self.code else ""
        return f"{self.all:.1f} ({self.first:.1f}{code})"


def _measured(name: str, scene: Scene, place: StorePlace) -> _Took:
    settings = {
        "DATASET__NAME": scene.name,
        "DATASET__URI": place.uri,
        "KAFKA__BOOTSTRAP_SERVERS": scene.topics.servers,
        **place.settings,
        **_SETTINGS.get(name, {}),
    }
    environment = os.environ | {f"COMMITTERD_{key}": value for key, value in settings.items()}
    words = [sys.executable, "-m", "committerd", *COMMANDS[name]]
    began = time.monotonic()
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        select.select([process.stdout], [], [])
        first = time.monotonic() - began
        if name in _ENDLESS:
            process.terminate()
            return _Took(first, first, 0)
        process.stdout.read()
        code = process.wait()
    return _Took(first, time.monotonic() - began, code)


def main() -> None:
    """Measure and print."""
    chosen = [name for name in COMMANDS if not sys.argv[1:] or any(part in name for part in sys.argv[1:])]
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker() as kafka,
        ProxiedS3() as s3,
        Scene(kafka=kafka.bootstrap_servers, name="events", folder=Path(folder)) as scene,
    ):
        scene.command("topics", "create")
        topic = scene.shown_position()["topic"]
        table = Path(folder, "table.lance")
        position = write(
            table,
            versions=VERSIONS,
            members=1,
            fragments=0,
            identity=TopicIdentity(cluster_id=topic["cluster_id"], topic=topic["topic"], topic_id=topic["topic_id"]),
            of_queue=lambda version: version <= LAST_OF_THE_QUEUE,
        )
        scene.stage(*[b"expired"] * position.next_offset)
        scene.topics.truncate(position.next_offset)
        outcome = Outcome(
            status=Status.COMMITTED,
            uuid=uuid_of(2**65 + 20),
            version=20,
            topic=topic["topic"],
            topic_id=topic["topic_id"],
        )
        with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
            admin.create_topics([NewTopic("raw", 1, 1), NewTopic("events.bad", 1, 1)])
        producer = scene.topics.producer
        producer.send(scene.topics.outcomes, value=outcome.SerializeToString(), key=outcome.uuid.encode())
        producer.send("raw", value=b'{"id": 1}')
        producer.flush()
        distant = s3.copy_of(table)
        print(f"{'seconds until the last word (the first)':<40} {'local':<20} S3 +{LATENCY_MS} ms")
        for name in chosen:
            local = _measured(name, scene, StorePlace(str(table)))
            with s3.adding(LATENCY_MS):
                far = _measured(name, scene, distant)
            print(f"{name:<40} {local!s:<20} {far}", flush=True)


if __name__ == "__main__":
    main()
