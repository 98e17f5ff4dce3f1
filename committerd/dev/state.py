"""What `committerd dev` keeps of a table: a folder in the cache, with the Kafka of its queue or a note where it is."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from committerd.dev import docker
from committerd.dev.parts import cache_folder
from committerd.errors import CommitterError
from committerd_common.uris import canonical_uri, dataset_name

_ABOUT, _LOCK, _KAFKA_LOCK = "table.json", "lock", "kafka.lock"


@dataclass(frozen=True, slots=True)
class DevTable:
    """A table and its folder."""

    folder: Path
    uri: str
    """Empty if the folder does not say it."""
    dataset: str
    kafka: Path
    """The folder of the table whose Kafka holds the queue."""

    @property
    def has_queue(self) -> bool:
        """Whether a Kafka was kept for it."""
        return any(self.kafka.glob("kafka-*")) or (self.kafka / "docker.log").exists()

    def write(self, kafka: Path) -> DevTable:
        """Note the table, and whose Kafka holds its queue."""
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {"uri": self.uri, "dataset": self.dataset, "kafka": kafka.name}
        (self.folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
        return DevTable(self.folder, self.uri, self.dataset, kafka)


def table_of(uri: str, dataset: str) -> DevTable:
    """What is kept of this table, or where it will be."""
    digest = hashlib.sha256(canonical_uri(uri).encode()).hexdigest()[:8]
    folder = _root() / f"{dataset}-{digest}"
    return DevTable(folder, uri, dataset, _kafka_of(folder))


def all_tables() -> list[DevTable]:
    """Of every table, by the name of its folder."""
    found = []
    for folder in sorted(one for one in _root().glob("*") if one.is_dir()):
        about = _about(folder)
        name = folder.name.rpartition("-")[0]
        found.append(DevTable(folder, about.get("uri", ""), about.get("dataset", name), _kafka_of(folder)))
    return found


def shared_kafka(tables: Sequence[DevTable], *, fresh: bool) -> Path:
    """The folder of the Kafka that serves these tables in one command: where their queues are, or the first table's.

    Raises `CommitterError` if their queues are in different Kafkas, or if a new Kafka would take the queue of a table
    that was not given.
    """
    homes = list(dict.fromkeys(one.kafka for one in tables if one.has_queue))
    if fresh or not homes:
        home = tables[0].folder
        others = [
            one for one in all_tables() if fresh and one.kafka == home and one.folder not in {t.folder for t in tables}
        ]
        if others:
            raise CommitterError(
                f"the Kafka kept for {tables[0].uri} holds the queue of {others[0].uri or others[0].folder.name} too, "
                "and --fresh deletes it: give both tables",
                code="shared_queue",
            )
        return home
    if len(homes) > 1:
        raise CommitterError(
            f"the queues of these tables are in {len(homes)} different Kafkas, which earlier commands have kept: run "
            "each in a command of its own, or begin new queues with --fresh, in one Kafka (records that wait are lost)",
            code="shared_queue",
        )
    return homes[0]


@contextlib.contextmanager
def table_locked(table: DevTable) -> Iterator[None]:
    """For the process of the table's committer. Raises `CommitterError` if another process has it."""
    with locked(table.folder / _LOCK) as holder:
        if holder:
            raise CommitterError(
                f"`committerd dev` runs already for {table.uri}, in process {holder}", code="runs_already"
            )
        yield


@contextlib.contextmanager
def kafka_locked(home: Path) -> Iterator[None]:
    """For the process that runs the Kafka. Raises `CommitterError` if another process runs it."""
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / _KAFKA_LOCK) as holder:
        if holder:
            other = _about(home).get("uri", home.name)
            raise CommitterError(
                f"the queue is in the Kafka of {other}, which process {holder} runs: give the tables to one command, "
                "`committerd dev URI URI`",
                code="runs_already",
            )
        yield


@contextlib.contextmanager
def locked(path: Path) -> Iterator[str]:
    """Lock a file for the block. Yields the number of the process that has it; empty if it is this process now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            yield file.read() or "unknown"
            return
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A kept table, for people and programs."""

    dataset: str
    uri: str
    kafka: str
    """The name of the dataset whose Kafka holds the queue; empty if none is kept."""
    bytes: int
    """Of the folder; Docker's volumes are elsewhere."""
    used: str
    """When it last ran, in UTC."""
    process: str
    """The process that runs it; empty if none does."""


def summary_of(table: DevTable) -> Summary:
    """What a listing says of it."""
    with locked(table.folder / _LOCK) as process:
        pass
    files = [one for one in table.folder.rglob("*") if one.is_file()]
    log = table.folder / "committerd.log"
    used = (log if log.exists() else table.folder).stat().st_mtime
    return Summary(
        dataset=table.dataset,
        uri=table.uri,
        kafka=_about(table.kafka).get("dataset", table.kafka.name) if table.has_queue else "",
        bytes=sum(one.stat().st_size for one in files if one.exists()),
        used=datetime.fromtimestamp(used, UTC).isoformat(timespec="seconds"),
        process=process,
    )


def remove(tables: Sequence[DevTable]) -> None:
    """Delete what is kept of these tables; the tables themselves stay. Raises `CommitterError`."""
    with contextlib.ExitStack() as stack:
        for one in tables:
            if not one.folder.is_dir():
                raise CommitterError(f"nothing is kept of {one.uri}", code="not_kept")
            guests = [two for two in all_tables() if two.kafka == one.folder and two.folder != one.folder]
            missing = [two.uri or two.dataset for two in guests if two.folder not in {t.folder for t in tables}]
            if missing:
                raise CommitterError(
                    f"the Kafka of {one.uri} holds the queue of {missing[0]} too: remove both", code="shared_queue"
                )
            stack.enter_context(table_locked(one))
        for one in tables:
            stack.enter_context(kafka_locked(one.folder))
            program = shutil.which("docker")
            if program is not None and (one.folder / "docker.log").exists():
                subprocess.run(docker.forget(program, container_of(one.folder)), capture_output=True, check=False)
            shutil.rmtree(one.folder)


def container_of(folder: Path) -> str:
    """The name of the container, and of the volume, of a Kafka in Docker."""
    return f"committerd-dev-{folder.name}"


def named(uri: str, name: str | None) -> DevTable:
    """A table by its URI, with the name under which it is kept."""
    place = uri if "://" in uri or uri.startswith("file:") else str(Path(uri).absolute())
    same = [one for one in all_tables() if one.uri and canonical_uri(one.uri) == canonical_uri(place)]
    found = next((one for one in same if name in (None, one.dataset)), None)
    return found or table_of(place, name or dataset_name(place))


def _root() -> Path:
    return cache_folder() / "dev"


def _about(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # of an earlier version, or a crash while it was written
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def _kafka_of(folder: Path) -> Path:
    return folder.with_name(_about(folder).get("kafka") or folder.name)
