"""The reports that maintenance writes before and after it deletes anything.

A report is an object in `_maintenance/`, one JSON object in a line: first the run, then each file. When all of it is
deleted, an object with the same name and the ending `.done` says so. A report without it belongs to a run that was
killed, and the next run finishes it. Reports are deleted after a week. Lance ignores the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from committerd.maintenance.files import File, RemovalReason
from committerd.stores.port import ObjectStore

FOLDER = "_maintenance/"
LATEST = f"{FOLDER}latest.json"
"""The state of the table at the end of the last run."""
_LATEST_BYTES_MAX = 64 * 1024
"""A larger object under that name is not maintenance's: its own has less than 1 KiB."""
STEPS_DONE = ("rewrite_ms", "index_ms")
"""The figures of `LATEST` that say when other steps of maintenance last succeeded (Unix time)."""
CLOCK = f"{FOLDER}clock"
"""An empty object that each run writes anew, to learn the store's time."""
TRIAL = f"{FOLDER}trial"
"""An empty object that is deleted at once, to learn whether the store deletes anything."""
KEPT_MS = 7 * 24 * 3_600_000
_ENDING, _DONE = ".jsonl", ".done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The deletions of one step of a run."""

    key: str
    versions: Sequence[int]
    files: Sequence[tuple[File, RemovalReason]]

    def encode(self, *, time_ms: int) -> bytes:
        """The object's bytes."""
        run = {"time_ms": time_ms, "versions": list(self.versions), "files": len(self.files)}
        lines = [run, *(line(file, why) for file, why in self.files)]
        return "".join(json.dumps(one) + "\n" for one in lines).encode()


def line(file: File, why: RemovalReason) -> dict[str, Any]:
    """One deletion."""
    return {"key": file.key, "bytes": file.size, "modified_ms": file.modified_ms, "why": why.value}


def figures(body: bytes | None) -> dict[str, int] | None:
    """The figures in `LATEST`; None if there are none."""
    try:
        found = json.loads(body) if body is not None else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("time_ms"), int):
        return None
    return {name: value for name, value in found.items() if isinstance(value, int)}


async def read_figures(store: ObjectStore) -> dict[str, int] | None:
    """The figures in `LATEST`; None if there are none, or if the object is too large. Raises `StoreUnavailable`."""
    body = await store.get_range(LATEST, 0, _LATEST_BYTES_MAX + 1)
    return None if body is None or len(body) > _LATEST_BYTES_MAX else figures(body)


def report_key(time_ms: int, number: int) -> str:
    """The key of a new report: reports of later runs are listed behind the reports of earlier runs."""
    return f"{FOLDER}{time_ms:015}-{number:04}{_ENDING}"


def done_key(key: str) -> str:
    """The key of the object that says that all of a report is deleted."""
    return key.removesuffix(_ENDING) + _DONE


def unfinished_reports(keys: Iterable[str]) -> list[str]:
    """The keys of the reports that have no `.done`."""
    given = set(keys)
    return sorted(key for key in given if key.endswith(_ENDING) and done_key(key) not in given)


def outdated(keys: Iterable[str], *, now_ms: int) -> list[str]:
    """The keys of finished reports, and of their `.done`, that are older than a week."""
    given = set(keys)
    open_reports = set(unfinished_reports(given))
    return sorted(key for key in given - open_reports - {LATEST} if _time_of(key) < now_ms - KEPT_MS)


def promised(body: bytes, reason: RemovalReason = RemovalReason.VERSION) -> frozenset[str]:
    """The keys that a report was about to delete for this reason. A damaged line promises nothing."""
    found = set()
    for text in body.decode(errors="replace").splitlines()[1:]:
        try:
            one = json.loads(text)
        except ValueError:
            continue
        if isinstance(one, Mapping) and one.get("why") == reason and isinstance(one.get("key"), str):
            found.add(one["key"])
    return frozenset(found)


def _time_of(key: str) -> int:
    """The time in the key of a report, or 2^63 for another object, which is not ours to delete."""
    text = key.removeprefix(FOLDER).partition("-")[0]
    return int(text) if text.isdecimal() and key.endswith((_ENDING, _DONE)) else 2**63
