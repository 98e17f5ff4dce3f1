"""pylance committing directly, in a process of its own (see `workers`)."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("LANCE_LOG", "error")

import lance

from bench.machine import peak_memory_bytes
from bench.pool import Pool
from bench.written import Written


@dataclass(slots=True, kw_only=True)
class Raced(Written):
    """The result of one writer; `failed` are the commits that pylance gave up."""

    doubtful: list[int] = field(default_factory=list)
    """The first file, if pylance gave it up."""


class Racer:
    """One of many writers: commits its files one after the other, each by the table's URI, as independent jobs do.

    The constructor commits the first file.
    """

    def __init__(
        self, *, pool: Pool, uri: str, numbers: Sequence[int], storage_options: dict[str, str] | None = None
    ) -> None:
        self._uri, self._options = uri, storage_options
        self._ready = [(number, lance.LanceOperation.Append([pool.for_pylance(number)])) for number in numbers]
        self._version = int(lance.dataset(uri, storage_options=storage_options).version)
        self._first = Raced(began=0.0)
        self._commit_one(*self._ready[0], self._first)

    def race(self, *, seconds: float) -> Raced:
        """Commit until the time is over; a running commit is finished. A failed file is not tried again."""
        raced = Raced(began=time.monotonic(), doubtful=self._first.failed, committed=self._first.committed)
        for number, operation in self._ready[1:]:
            if time.monotonic() - raced.began >= seconds:
                break
            self._commit_one(number, operation, raced)
        raced.ended = time.monotonic()
        return raced

    def _commit_one(self, number: int, operation: Any, raced: Raced) -> None:
        began = time.monotonic()
        try:
            table: Any = lance.LanceDataset.commit(
                self._uri, operation, read_version=self._version, storage_options=self._options
            )
        except Exception as error:  # noqa: BLE001  # pylance raises OSError, RuntimeError and others
            raced.note_failed(number, error)
            return
        raced.note_committed(number, began=began)
        self._version = int(table.version)


class Alone:
    """The only writer of a table; returns the seconds that each commit took."""

    def __init__(self, *, pool: Pool, uri: str) -> None:
        self._pool, self._uri = pool, uri
        self._table: Any = None

    def warm(self, *, number: int) -> float:
        """Commit on the dataset object that the previous commit returned."""
        if self._table is None:
            self._table = lance.dataset(self._uri)
            self._table.count_rows()
        operation = lance.LanceOperation.Append([self._pool.for_pylance(number)])
        began = time.perf_counter()
        self._table = lance.LanceDataset.commit(self._table, operation, read_version=self._table.version)
        return time.perf_counter() - began

    def by_uri(self, *, number: int) -> float:
        """Commit by the table's URI, which includes opening it."""
        operation = lance.LanceOperation.Append([self._pool.for_pylance(number)])
        began = time.perf_counter()
        made: Any = lance.LanceDataset.commit(self._uri, operation, read_version=number + 1)
        seconds = time.perf_counter() - began
        assert made.version == number + 2, "another has written to this table"
        return seconds

    def peak(self) -> int:
        """The peak memory of this process, in bytes."""
        gc.collect()
        return peak_memory_bytes()


class Late:
    """A writer that read its version long ago."""

    def __init__(self, *, pool: Pool, uri: str, read_version: int) -> None:
        self._pool, self._uri, self._read_version = pool, uri, read_version

    def commit(self, *, operation: str, times: int) -> list[float]:
        """Return how many seconds each commit or refusal took. `operation`: append, delete or update."""
        taken = []
        for number in range(times):
            table: Any = lance.dataset(self._uri)
            table.count_rows()
            work = self._work(operation, self._pool.count - 2 - number)
            began = time.perf_counter()
            with contextlib.suppress(OSError, RuntimeError):  # refused
                lance.LanceDataset.commit(table, work, read_version=self._read_version)
            taken.append(time.perf_counter() - began)
        return taken

    def _work(self, operation: str, number: int) -> Any:
        one = self._pool.for_pylance(number)
        match operation:
            case "append":
                return lance.LanceOperation.Append([one])
            case "delete":
                return lance.LanceOperation.Delete(updated_fragments=[], deleted_fragment_ids=[0], predicate="true")
            case _:
                return lance.LanceOperation.Update(
                    removed_fragment_ids=[0],
                    updated_fragments=[],
                    new_fragments=[one],
                    fields_modified=[],
                    fields_for_preserving_frag_bitmap=[],
                )
