"""Appends, deletes and reads beside `committerd maintain`, which is killed at random moments; then all is checked.

    python -m scripts.maintenance_soak --seconds 300

At the end the audit must find each row exactly once, every version that is left must be readable as a whole, and
queries through the index must find what the table has. It prints how fragments, versions and bytes developed.
`--no-maintenance` does the same without it, for comparison; `--no-kills` lets it run.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from committerd_client import staging
from committerd_common.messages import Status
from harness.daemon import Daemon
from harness.kafka import kafka_broker
from harness.scene import Scene

_APPENDS_AT_ONCE = 20
_SETTINGS = {
    "MAINTAIN__INTERVAL_SECONDS": "0.2",
    "MAINTAIN__CLEANUP_SECONDS": "2",
    "MAINTAIN__FRAGMENTS_MAX": "100",
    "MAINTAIN__UNINDEXED_ROWS_MAX": "500",
}


@dataclass(slots=True)
class Figures:
    """What a run has done, and what it found."""

    appends: int = 0
    deletes: int = 0
    refused: int = 0
    """Deletes that were refused."""
    reads: int = 0
    kills: int = 0
    seconds: float = 0.0
    fragments: list[int] = field(default_factory=list)
    """Number of fragments at each read."""
    problems: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The figures, for people."""
        rate = self.appends / max(self.seconds, 1e-9)
        return [
            f"{self.appends} appends ({rate:.0f}/s), {self.deletes} deletes and {self.refused} refused, "
            f"{self.reads} reads, {self.kills} kills in {self.seconds:.0f} s",
            f"fragments: at most {max(self.fragments, default=0)}, at last {(self.fragments or [0])[-1]}",
            *self.problems,
        ]


def soak(scene: Scene, maintainer: Daemon | None, *, seconds: float, kills: bool, rng: random.Random) -> Figures:
    """Write, read and kill for so long, then check; `maintainer` None: without maintenance."""
    found = Figures()
    ids = set(scene.table.create(rows=100))
    scene.started()
    scene.ask(staging.create_index(scene.table.open(), "id", "BTREE"))
    ended = threading.Event()
    reader = threading.Thread(target=_read, args=(scene, found, ended))
    reader.start()
    started = time.monotonic()
    kill_at = started + rng.uniform(1, 4)
    if maintainer is not None:
        maintainer.start()
    try:
        while time.monotonic() < started + seconds:
            _write(scene, found, ids, rng)
            if maintainer is not None and kills and time.monotonic() > kill_at:
                maintainer.kill()
                maintainer.start()
                found.kills += 1
                kill_at = time.monotonic() + rng.uniform(1, 4)
        found.seconds = time.monotonic() - started
    finally:
        ended.set()
        reader.join()
        if maintainer is not None:
            maintainer.stop()
    if maintainer is not None:
        scene.command("maintain", "--once")
    _check(scene, found, ids)
    return found


def _write(scene: Scene, found: Figures, ids: set[int], rng: random.Random) -> None:
    offsets = scene.append(_APPENDS_AT_ONCE)
    answers = scene.topics.wait_answers(offsets)
    assert {one.status for one in answers} == {Status.COMMITTED}
    found.appends += len(offsets)
    ids |= {one for answer in answers for one in scene.table.brought[answer.uuid]}
    gone = rng.choice(sorted(ids))
    (answer,) = scene.ask(staging.delete(scene.table.open(), f"id = {gone}"))
    if answer.status == Status.COMMITTED:
        ids.discard(gone)
        found.deletes += 1
    else:
        found.refused += 1


def _read(scene: Scene, found: Figures, ended: threading.Event) -> None:
    """Read the latest version, and again one that was opened before."""
    before = scene.table.open()
    rows = before.count_rows()
    while not ended.wait(0.05):
        try:
            table = scene.table.open()
            found.fragments.append(len(table.get_fragments()))
            counted = table.to_table().num_rows
            if before.to_table().num_rows != rows:
                found.problems.append(f"version {before.version} has other rows than before")
            before, rows = table, counted
            found.reads += 1
        except Exception as error:  # noqa: BLE001  # whatever a reader meets is what is looked for
            found.problems.append(f"a reader failed: {error}")


def _check(scene: Scene, found: Figures, ids: set[int]) -> None:
    # The harness' own audit reads transactions with pylance, which can't show a Rewrite with indices.
    scene.command("audit")
    if sorted(scene.table.ids()) != sorted(ids):
        found.problems.append("rows are lost or doubled")
    table = scene.table.open()
    for version in table.versions():
        scene.table.open(version["version"]).to_table()
    for one in sorted(ids)[:: max(len(ids) // 20, 1)]:
        if table.count_rows(f"id = {one}") != 1:
            found.problems.append(f"a query through the index does not find row {one}")
    if sorted(scene.table.ids_in_4()) != sorted(ids):
        found.problems.append("pylance 4.0.0 reads other rows")


def maintainer_of(scene: Scene, kafka: str) -> Daemon:
    """`committerd maintain` for this dataset; not started."""
    return Daemon(
        name=scene.name,
        uri=scene.table.uri,
        kafka=kafka,
        settings=_SETTINGS,
        log=scene.folder / "maintain.log",
        command=(sys.executable, "-m", "committerd", "maintain"),
    )


def main() -> int:
    """Run it; 1 if there was a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--no-maintenance", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="committerd-soak-") as folder, kafka_broker() as kafka:
        servers = kafka.bootstrap_servers
        with Scene(kafka=servers, name="soak", folder=Path(folder)) as scene:
            maintainer = None if given.no_maintenance else maintainer_of(scene, servers)
            rng = random.Random(given.seed)
            found = soak(scene, maintainer, seconds=given.seconds, kills=not given.no_kills, rng=rng)
            size = sum(path.stat().st_size for path in Path(scene.table.uri).rglob("*") if path.is_file())
            print(
                "\n".join([*found.lines(), f"{len(scene.table.open().versions())} versions, {size >> 20} MiB of files"])
            )
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
