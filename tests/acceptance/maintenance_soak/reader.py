"""A reader that takes as much time in the second hour as in the first minute, as a process of its own.

    python -m tests.acceptance.maintenance_soak.reader URI KEEP_SECONDS SEED

Until SIGTERM it does this, with pylance alone, and prints a line of JSON every few seconds. The times are for
KEEP_SECONDS 60, and shorter if that is. Each of these takes at most a twentieth of a core; if it needs more, as on a
table with thousands of fragments, it is done less often.

* every second: opens the latest version, counts its rows, and reads up to 256 rows at a random place of each of four
  random fragments. The vector of each row must be that of its id and value.
* every 4 s: asks both indices for rows that it has just read by such a scan. The scalar index must find ten of them and
  no others; the vector index the nearest five among 100 of them, which are computed here.
* every 2 s: opens a version again that it opened before, by its number, and reads the same rows of it. They must be the
  same. It takes the oldest one that will be younger than KEEP_SECONDS when the read is over, or a random one.
* every 60 s: reads the whole latest version, in which no id may be twice, and compares queries through each index with
  scans of all rows; and reads the previous whole version again, if it is still young enough.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.acceptance.maintenance_soak.table import DIMENSIONS, columns_of, disagreements, wrong_rows

_READ, _OLD, _QUERY, _WHOLE = 1 / 60, 1 / 30, 1 / 15, 1.0
"""How often each kind of work is due, in times of KEEP_SECONDS."""
_REPORT_SECONDS = 5.0
_SHARE = 0.05
"""Each kind of work takes at most this share of a core; if it needs more, it is done less often."""
_FRAGMENTS = 4
_ROWS = 256
"""Read at one place of a fragment."""
_NEAREST, _AMONG, _ASKED = 5, 100, 10
_SPARE_SECONDS = 5.0
"""A version is not read again when it gets as old as KEEP_SECONDS within this many seconds; half of these at most."""


@dataclass(slots=True)
class ReadCounts:
    """What was read until now."""

    reads: int = 0
    """Reads of some rows of the latest version."""
    rows: int = 0
    queries: int = 0
    """Pairs of a query through an index and what a scan says."""
    old: int = 0
    """Reads of an older version."""
    old_seconds_max: float = 0.0
    """The age of the oldest one, from when it was the latest one to the end of the read."""
    whole: int = 0
    """Reads of a whole version."""
    whole_seconds_max: float = 0.0
    late: int = 0
    """Reads of an older version that ended when it was older than versions are kept; what they found does not count."""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _RowRange:
    """Some rows of a fragment."""

    fragment: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """What was found in a version."""

    version: int
    opened: float
    """When it was the latest one."""
    count: int
    ranges: tuple[_RowRange, ...]
    rows: pa.Table


class Reader:
    """The reader of one table."""

    def __init__(self, uri: str, keep_seconds: float, seed: int) -> None:
        self._uri, self._keep = uri, keep_seconds
        self._rng = np.random.default_rng(seed)
        self._before: list[_Snapshot] = []
        self._whole: tuple[int, float, list[int]] | None = None
        self._spare = min(_SPARE_SECONDS, keep_seconds / 2)
        self._every = {self._look: _READ, self._look_back: _OLD, self._read_whole: _WHOLE}
        self._due = dict.fromkeys(self._every, 0.0)
        self._query_at = 0.0
        self.read = ReadCounts()

    def round(self) -> None:
        """Do what is due; what it meets is a problem."""
        now = time.monotonic()
        for work, share in self._every.items():
            if now >= self._due[work]:
                before = time.process_time()
                self._try(work)
                spent = time.process_time() - before
                self._due[work] = max(now + share * self._keep, time.monotonic() + spent / _SHARE)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # whatever a reader meets is what is looked for
            self.read.problems.append(f"a reader failed: {type(error).__name__}: {error}")

    def _look(self) -> None:
        opened = time.monotonic()  # before: it may not be the latest one any more when it is open
        table = lance.dataset(self._uri)
        ranges = self._ranges(table)
        found = _rows_at(table, ranges)
        count = table.count_rows()
        if wrong := wrong_rows(found):
            self._problem(table, f"the vectors of rows {wrong[:10]} are not those of their values")
        self.read.reads += 1
        self.read.rows += found.num_rows
        self._before.append(
            _Snapshot(version=table.version, opened=opened, count=count, ranges=ranges, rows=found.combine_chunks())
        )
        while self._before[0].opened < opened - self._keep:
            del self._before[0]
        if opened >= self._query_at and found.num_rows:
            self._query_at = opened + _QUERY * self._keep
            self._query(table, found)

    def _ranges(self, table: lance.LanceDataset) -> tuple[_RowRange, ...]:
        fragments = table.get_fragments()
        chosen = self._rng.choice(len(fragments), min(_FRAGMENTS, len(fragments)), replace=False)
        ranges = []
        for number in chosen.tolist():
            beyond = max(fragments[number].count_rows() - _ROWS, 0)
            ranges.append(_RowRange(fragments[number].fragment_id, int(self._rng.integers(beyond + 1))))
        return tuple(ranges)

    def _query(self, table: lance.LanceDataset, scanned: pa.Table) -> None:
        """Ask the indices for rows that a scan of this version has found."""
        asked = scanned.take(self._rng.permutation(scanned.num_rows)[:_AMONG])
        ids, _, vectors = columns_of(asked)
        found = table.to_table(columns=["id", "value"], filter=_one_of(ids[:_ASKED]))
        if _pairs(found) != _pairs(asked.slice(0, _ASKED)):
            self._problem(table, f"the scalar index finds {_pairs(found)}, a scan {_pairs(asked.slice(0, _ASKED))}")
        point = self._rng.random(DIMENSIONS, np.float32)
        # All partitions: pylance splits those that grow large when it optimizes the index.
        nearest = {"column": "vector", "q": point, "k": _NEAREST, "nprobes": 10_000}
        near = table.to_table(columns=["id", "_distance"], filter=_one_of(ids), prefilter=True, nearest=nearest)
        distances = ((vectors - point) ** 2).sum(axis=1)
        wanted = np.sort(distances)[:_NEAREST]
        own = dict(zip(ids.tolist(), distances.tolist(), strict=True))
        given = sorted(own.get(id_, -1.0) for id_ in near["id"].to_pylist())
        if len(given) != len(wanted) or not np.allclose(given, wanted, atol=1e-5):
            self._problem(table, f"the vector index finds {near.to_pydict()}, a scan the distances {wanted.tolist()}")
        self.read.queries += 2

    def _look_back(self) -> None:
        limit = time.monotonic() - self._keep + self._spare
        young = [one for one in self._before if one.opened > limit]
        if not young:
            return
        before = young[0 if self._rng.random() < 0.5 else int(self._rng.integers(len(young)))]
        self._again(before.version, before.opened, lambda table: self._compare(table, before))

    def _compare(self, table: lance.LanceDataset, before: _Snapshot) -> str:
        if table.count_rows() == before.count and _rows_at(table, before.ranges).equals(before.rows):
            return ""
        return "has other rows than before"

    def _again(self, version: int, opened: float, compare: Callable[[lance.LanceDataset], str]) -> None:
        """Open an older version once more; `compare` says what is wrong with it."""
        try:
            said = compare(lance.dataset(self._uri, version=version))
        except Exception as error:  # noqa: BLE001  # as above
            said = f"can't be read: {type(error).__name__}: {error}"
        age = time.monotonic() - opened
        if age >= self._keep:
            self.read.late += 1
            return
        self.read.old += 1
        self.read.old_seconds_max = max(self.read.old_seconds_max, age)
        if said:
            self.read.problems.append(f"version {version}, which was the latest one {age:.1f} s before, {said}")

    def _read_whole(self) -> None:
        if self._whole is not None:
            version, opened, sums = self._whole
            if time.monotonic() < opened + self._keep - self._spare:
                self._again(version, opened, lambda table: "" if _sums(table) == sums else "has other rows than before")
        started = time.monotonic()
        table = lance.dataset(self._uri)
        found = table.to_table()
        ids = found["id"].to_numpy()
        if twice := len(ids) - len(np.unique(ids)):
            self._problem(table, f"has {twice} rows twice")
        if wrong := wrong_rows(found):
            self._problem(table, f"the vectors of rows {wrong[:10]} are not those of their values")
        self._whole = table.version, started, _sums_of(found)
        asked = self._rng.choice(ids, min(_ASKED, len(ids)), replace=False).tolist()
        self.read.problems += disagreements(table, asked, self._rng.random(DIMENSIONS, np.float32))
        self.read.whole += 1
        self.read.queries += 2
        self.read.whole_seconds_max = max(self.read.whole_seconds_max, time.monotonic() - started)

    def _problem(self, table: lance.LanceDataset, said: str) -> None:
        self.read.problems.append(f"version {table.version}: {said}")


def _rows_at(table: lance.LanceDataset, ranges: tuple[_RowRange, ...]) -> pa.Table:
    parts = []
    for one in ranges:
        fragment: Any = table.get_fragment(one.fragment)
        parts.append(fragment.to_table(columns=["id", "value", "vector"], offset=one.offset, limit=_ROWS))
    return pa.concat_tables(parts).combine_chunks()


def _one_of(ids: Any) -> str:
    return f"id in ({', '.join(map(str, ids.tolist()))})"


def _pairs(found: pa.Table) -> list[tuple[int, int]]:
    return sorted(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))


def _sums(table: lance.LanceDataset) -> list[int]:
    return _sums_of(table.to_table(columns=["id", "value"]))


def _sums_of(found: pa.Table) -> list[int]:
    return [found.num_rows, *(int(pc.sum(found[name]).as_py() or 0) for name in ("id", "value"))]


def main() -> None:
    """Read until SIGTERM."""
    uri, keep_seconds, seed = sys.argv[1:]
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    reader = Reader(uri, float(keep_seconds), int(seed))
    report_at = time.monotonic() + _REPORT_SECONDS
    while not ended.wait(0.1):
        reader.round()
        if time.monotonic() >= report_at:
            report_at += _REPORT_SECONDS
            _print(reader.read)
    _print(reader.read)


def _print(read: ReadCounts) -> None:
    print(json.dumps(asdict(read)), flush=True)
    read.problems.clear()


if __name__ == "__main__":
    main()
