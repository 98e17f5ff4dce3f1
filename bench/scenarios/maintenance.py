"""A table of many small fragments is made fit for reading: by hand, and by `committerd maintain`.

Both sides begin with the same rows in equal fragments, a scalar index on all of them, and a row of some fragments
deleted. In one case nobody writes meanwhile; in the other a writer deletes one row after the other until the fragments
are rewritten: with `LanceDataset.delete`, or through the queue.

* pylance: `optimize.compact_files()`, again as long as it fails (at most `_TRIES` times), then
  `cleanup_old_versions` of all versions but the latest, when the writer has ended;
* committerd: `committerd maintain --once` in a process of its own, with an hour of the settings so short that old
  versions go, when the writer has ended. Its time to start is not counted.

Noted are the seconds of both steps, the bytes of files that are left, the failed compactions, the deletes that had to
be executed again or failed, and how many the writer did in the time. Each row must be there exactly once afterwards.
"""

from __future__ import annotations

import datetime
import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from bench.bench import Bench, dataset_of
from bench.pool import WrongTable
from bench.results import Side
from committerd_client import RetryableConflict, SyncCommitClient, staging
from harness.places import StorePlace

NAME = "maintenance"
ALONE, BESIDE = "nobody writes", "a writer beside"
_ROWS = 100
"""Rows of each fragment at the start."""
_TRIES = 5
_HOUR_SECONDS = 0.001


@dataclass(slots=True)
class _Writer:
    """Deletes one row after the other; what it counts."""

    delete: Callable[[int], bool]
    """Deletes the row with this id; whether that had to be done again or failed."""
    ids: Iterator[int]
    deleted: int = 0
    again: int = 0


def run(bench: Bench) -> None:
    """Measure both sides in turn."""
    for _ in range(bench.plan.runs):
        for case in (ALONE, BESIDE):
            _measure_pylance(bench, case)
            _measure(bench, case)


def _measure_pylance(bench: Bench, case: str) -> None:
    uri = _table(bench)

    def delete(number: int) -> bool:
        try:
            lance.dataset(uri).delete(f"id = {number}")
        except OSError:  # pylance has tried again ten times
            return True
        return False

    failed = 0
    with _writing(_Writer(delete, _ids(bench, case))) as writer:
        began = time.perf_counter()
        for attempt in range(_TRIES):
            try:
                lance.dataset(uri).optimize.compact_files()
                break
            except OSError:
                failed = attempt + 1
        compacted = time.perf_counter() - began
    began = time.perf_counter()
    lance.dataset(uri).cleanup_old_versions(older_than=datetime.timedelta(0))
    cleaned = time.perf_counter() - began
    _note(bench, case, "pylance", uri, writer=writer, compaction=compacted, cleanup=cleaned, failed=failed)


def _measure(bench: Bench, case: str) -> None:
    uri = _table(bench)
    with bench.daemon(StorePlace(uri), durable=True) as daemon:
        daemon.wait_ready(text="active")
        environment = daemon.environment | {"COMMITTERD_MAINTAIN__KEEP_VERSIONS": "1"}

        def maintain() -> list[dict[str, Any]]:
            command = [sys.executable, "-m", "harness.short_hours", str(_HOUR_SECONDS)]
            done = subprocess.run(
                [*command, "--once", "--json"], env=environment, capture_output=True, text=True, check=True
            )
            return [json.loads(line) for line in done.stdout.splitlines()]

        with SyncCommitClient(bench.kafka, dataset=dataset_of(daemon), dataset_uri=uri) as client:

            def delete(number: int) -> bool:
                again = []

                def staged(refused: object = None) -> Any:
                    again.extend([refused] if refused is not None else [])
                    return staging.delete(lance.dataset(uri), f"id = {number}")

                try:
                    client.commit(staged(), reexecute=staged)
                except RetryableConflict:
                    return True
                return bool(again)

            with _writing(_Writer(delete, _ids(bench, case))) as writer:
                done = maintain()
        rewritten = [one for one in done if one["event"] == "rewritten"]
        cleaned = maintain()[-1]
        daemon.stop()
    failed = sum(one["event"] == "failed" for one in done)
    compacted = sum(one["seconds"] for one in rewritten)
    _note(
        bench, case, "committerd", uri, writer=writer, compaction=compacted, cleanup=cleaned["seconds"], failed=failed
    )


@contextmanager
def _writing(writer: _Writer) -> Iterator[_Writer]:
    """The writer works in a thread while the block runs."""
    ended = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for number in writer.ids:
                if ended.is_set():
                    return
                failed = writer.delete(number)
                writer.again += failed
                writer.deleted += not failed
        except Exception as error:  # noqa: BLE001  # raised below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield writer
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


def _ids(bench: Bench, case: str) -> Iterator[int]:
    """The rows that the writer deletes: one in each fragment, in turn."""
    if case == ALONE:
        return iter(())
    count = bench.plan.maintained_fragments
    return (place * _ROWS + row for row in range(1, _ROWS) for place in range(count))


def _table(bench: Bench) -> str:
    count = bench.plan.maintained_fragments
    uri = str(bench.folder / f"maintained-{secrets.token_hex(4)}.lance")
    rows = pa.table({"id": pa.array(range(count * _ROWS), pa.int64())})
    table = lance.write_dataset(rows, uri, max_rows_per_file=_ROWS)
    table.create_scalar_index("id", "BTREE")
    table.delete(f"id % {10 * _ROWS} = 0")
    return uri


def _note(
    bench: Bench, case: str, side: Side, uri: str, *, writer: _Writer, compaction: float, cleanup: float, failed: int
) -> None:
    table = lance.dataset(uri)
    ids = table.to_table()["id"].to_pylist()
    count = bench.plan.maintained_fragments * _ROWS
    wanted = count - len(range(0, count, 10 * _ROWS)) - writer.deleted
    if len(ids) != wanted or len(set(ids)) != wanted:
        raise WrongTable(f"{NAME}: {side}: {len(ids)} rows, {len(set(ids))} different ones, instead of {wanted}")
    size = sum(path.stat().st_size for path in Path(uri).rglob("*") if path.is_file())
    fragments = len(table.get_fragments())
    (index,) = table.describe_indices()
    covered = {id_ for segment in index.segments for id_ in segment.fragment_ids}
    lacking = sum(one.fragment_id not in covered for one in table.get_fragments())
    bench.results.note(
        NAME,
        case,
        side,
        compaction=(compaction, "s"),
        cleanup=(cleanup, "s"),
        bytes=(size, "bytes"),
        fragments=(fragments, "fragments"),
        unindexed=(lacking, "fragments"),
        failed=(failed, "compactions"),
        again=(writer.again, "deletes"),
        deleted=(writer.deleted, "deletes"),
    )
    bench.tell(
        f"{NAME}: {side}, {case}: {compaction:.2f} s to rewrite, {cleanup:.2f} s to clean up, {size >> 10} KiB in "
        f"{fragments} fragments ({lacking} not indexed), {failed} compactions failed; {writer.deleted} deletes, "
        f"{writer.again} done again"
    )
