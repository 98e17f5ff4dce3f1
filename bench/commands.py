"""How long commands take to answer on a table with 10,000 versions, of which the newest of the queue is version 40.

    python -m bench.commands

Prints a row for each command, with the seconds that it takes as a process of its own: on a local disk, and on S3 with
60 ms added to every response. The committer does not run. The worst case is that of other writers, whose versions say
nothing of the queue.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.long_history import uuid_of, write
from bench.proxied_s3 import ProxiedS3
from committerd.queue.port import TopicIdentity
from harness.kafka import KafkaBroker
from harness.places import StorePlace
from harness.scene import Scene

VERSIONS, LAST_OF_THE_QUEUE, LATENCY_MS = 10_000, 40, 60
COMMANDS: Mapping[str, Sequence[str]] = {
    "status": ("status",),
    "app list": ("app", "list"),
    "explain, version 9,000": ("explain", uuid_of(2**65 + 9_000)),
    "explain, unknown": ("explain", str(uuid.UUID(int=1))),
    "position show": ("position", "show"),
    "audit": ("audit",),
}


def _seconds(scene: Scene, place: StorePlace, words: Sequence[str]) -> float:
    settings = {
        "DATASET__NAME": scene.name,
        "DATASET__URI": place.uri,
        "KAFKA__BOOTSTRAP_SERVERS": scene.topics.servers,
        **place.settings,
    }
    environment = {f"COMMITTERD_{name}": value for name, value in settings.items()}
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "committerd", *words], env=environment, capture_output=True, check=False)
    return time.monotonic() - began


def main() -> None:
    """Measure and print."""
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
        distant = s3.copy_of(table)
        print(f"{'command':<24} {'local, s':>9} {f'S3 +{LATENCY_MS} ms, s':>14}")
        for name, words in COMMANDS.items():
            local = _seconds(scene, StorePlace(str(table)), words)
            with s3.adding(LATENCY_MS):
                print(f"{name:<24} {local:>9.1f} {_seconds(scene, distant, words):>14.1f}", flush=True)


if __name__ == "__main__":
    main()
