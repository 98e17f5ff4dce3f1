"""The writer, the reader and the sampler of a run, and the names that others give to versions."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import numpy as np

from committerd_client import staging
from committerd_client.staging.keys import key_columns
from committerd_common.messages import Status
from harness.scene import Scene
from tests.acceptance.maintenance_soak.figures import Figures, Sample, Targets, files_of
from tests.acceptance.maintenance_soak.table import (
    DIMENSIONS,
    INDICES,
    STORAGE,
    appends,
    disagreements,
    rows,
    values_of,
)

_APPENDS_AT_ONCE = 15
_ROWS = 3
"""Rows of each Append."""
_CHANGED = 4
"""Rows that an upsert changes; it inserts as many."""


@dataclass(slots=True)
class Writer:
    """Writes rows through the queue, and knows what must be in the table."""

    scene: Scene
    rng: random.Random
    found: Figures
    keep_seconds: float
    """How long versions are kept."""
    values: dict[int, int] = field(default_factory=dict)
    """The value of each row that was committed, by id."""
    next_id: int = 0
    keyed: Any = ()

    def create(self, **options: Any) -> None:
        """Create the table with pylance."""
        self.values = self._new_rows(300)
        lance.write_dataset(rows(self.values), self.scene.table.uri, data_storage_version=STORAGE, **options)
        self.keyed = key_columns(self.scene.table.open(), "id")

    def index(self) -> None:
        """Create the indices through the queue; needs an active committer."""
        for column, (kind, options) in INDICES.items():
            (answer,) = self.scene.ask(staging.create_index(self.scene.table.open(), column, kind, **options))
            assert answer.status == Status.COMMITTED

    def write(self) -> None:
        """Appends at once; then an upsert of old and new rows, and a delete."""
        groups = [self._new_rows(_ROWS) for _ in range(_APPENDS_AT_ONCE)]
        answers = self.scene.ask(*appends(self.scene.table.uri, groups, self.keyed))
        assert {one.status for one in answers} == {Status.COMMITTED}, answers
        self.found.appends += len(answers)
        for group in groups:
            self.values |= group
        some = self.rng.sample(sorted(self.values), _CHANGED + 1)
        changed = {id_: self.rng.randrange(1, 1 << 30) for id_ in some[1:]} | self._new_rows(_CHANGED)
        upsert, delete = self._staged(changed, some[0])
        upserted, deleted = self.scene.ask(upsert, delete)
        if upserted.status == Status.COMMITTED:
            self.values |= changed
            self.found.upserts += 1
        if deleted.status == Status.COMMITTED:
            del self.values[some[0]]
            self.found.deletes += 1
        self.found.refused += [upserted.status, deleted.status].count(Status.RETRYABLE)

    def _staged(self, changed: dict[int, int], gone: int) -> tuple[Any, Any]:
        """An upsert and a delete, on the latest version.

        They begin again if they took longer than versions are kept: the hours of a run last seconds, and a busy machine
        can need as long for a merge.
        """
        while True:
            opened = time.monotonic()
            table = self.scene.table.open()
            try:
                upsert = staging.merge_insert(table, rows(changed), on="id").transaction
                return upsert, staging.delete(table, f"id = {gone}")
            except OSError as error:
                seconds = time.monotonic() - opened
                if seconds < self.keep_seconds:
                    raise RuntimeError(self._about(error, table.version, seconds)) from error
                self.found.too_late += 1

    def _about(self, error: OSError, version: int, seconds: float) -> str:
        """Return a message: the error, the age of the version, and the lines of the logs that name the missing file."""
        names = set(re.findall(r"[\w-]+\.(?:lance|arrow|bin|idx)", str(error)))
        logs = sorted(self.scene.folder.glob("*.log"))
        said = [line for log in logs for line in log.read_text().splitlines() if any(name in line for name in names)]
        return f"version {version}, opened {seconds:.1f} s before: {error}; the logs say of it: {said}"

    def _new_rows(self, count: int) -> dict[int, int]:
        self.next_id += count
        return dict.fromkeys(range(self.next_id - count, self.next_id), 0)


@contextlib.contextmanager
def beside(work: Callable[[], None], found: Figures, *, every: float, what: str) -> Iterator[None]:
    """Call `work` again and again in a thread; what it raises is a problem."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every):
            try:
                work()
            except Exception as error:  # noqa: BLE001  # whatever a reader meets is what is looked for
                found.problems.append(f"{what} failed: {error}")

    thread = threading.Thread(target=run, name=what)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Reader:
    """Reads the latest version and one that was opened before, and compares indices with scans."""

    def __init__(self, scene: Scene, found: Figures, targets: Targets, seed: int) -> None:
        self._scene = scene
        self._found = found
        self._rng = np.random.default_rng(seed)
        self._keep_seconds = targets.hour_seconds
        self._before: tuple[lance.LanceDataset, float, dict[int, int]] | None = None

    def read(self) -> None:
        """One round."""
        table = self._scene.table.open()
        opened = time.monotonic()
        values = values_of(table)
        self._found.reads += 1
        ids = self._rng.choice(list(values), 10).tolist()
        self._found.problems += disagreements(table, ids, self._rng.random(DIMENSIONS, np.float32))
        self._found.queries += 1
        if self._before is not None:
            old, since, then = self._before
            now = values_of(old)
            # A read may take so long that the version gets too old meanwhile.
            if now != then and time.monotonic() < since + self._keep_seconds:
                self._found.problems.append(f"version {old.version} has other rows than before")
            if opened < since + self._keep_seconds / 2:
                return
        self._before = table, opened, values


def sampler(scene: Scene, found: Figures, targets: Targets, start: float) -> Callable[[], None]:
    """Adds a sample of the table at each call."""
    folder = Path(scene.table.uri)

    def sample() -> None:
        files = files_of(folder, new_seconds=targets.window_seconds)
        table = scene.table.open()
        fragments = table.get_fragments()
        live = sum(file.file_size_bytes or 0 for one in fragments for file in one.data_files())
        for index in table.describe_indices():
            for segment in index.segments:
                live += files_of(folder / "_indices" / str(segment.uuid), new_seconds=0).bytes
        found.samples.append(
            Sample(
                second=time.monotonic() - start,
                version=table.version,
                fragments=len(fragments),
                versions=files.manifests,
                bytes=files.bytes,
                live_bytes=live,
                new_bytes=files.new_bytes,
            )
        )

    return sample
