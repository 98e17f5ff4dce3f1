"""A process of `committerd ingest` beside the committer, which brings files into the table."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

from committerd.dev.child import ChildProcess
from committerd.errors import SettingsError
from committerd_common.uris import canonical_uri

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.3
_GRACE_SECONDS = 5.0
_GROUP = "COMMITTERD_INGEST__"
_ENDINGS = re.compile(r"(\.(parquet|pq|arrow|feather|ipc|csv|json|jsonl|ndjson))?(\.(gz|bz2|zst))?$", re.IGNORECASE)


def table_beside(path: str) -> str:
    """The path of a table that is named after a file or a folder and lies beside it.

    Raises `SettingsError` for a place in a store, where it would be a guess.
    """
    if "://" in canonical_uri(path):
        raise SettingsError(f"--ingest {path}: give the URI of the table too, for files in a store")
    found = PurePath(os.path.abspath(canonical_uri(path)))
    return str(found.with_name(f"{_ENDINGS.sub('', found.name) or found.name}.lance"))


@contextlib.contextmanager
def ingesting(path: str, *, settings: Mapping[str, str], log: Path) -> Iterator[None]:
    """During the block, bring the files of this folder, or this file, into the table.

    `settings`: those of the table and of Kafka, as variables without `COMMITTERD_`; the user's of group `ingest` are
    for another pipeline. `log`: a file. What the process warns of is logged here too.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith(_GROUP)}
    given = {
        **settings,
        "INGEST__SOURCE": "files",
        "INGEST__FOLDER": path if "://" in canonical_uri(path) else os.path.abspath(canonical_uri(path)),
        "INGEST__CREATE_FROM": "rows",
        "INGEST__LIST_SECONDS": "1",
        "INGEST__FLUSH_SECONDS": "0.2",
        "INGEST__RETRY_SECONDS": "2",
        "LOG__FORMAT": "json",
    }
    log.write_bytes(b"")
    done = threading.Event()
    child = ChildProcess(
        [sys.executable, "-m", "committerd", "ingest"],
        log=log,
        environment={**inherited, **{f"COMMITTERD_{name}": value for name, value in given.items()}},
    )
    teller = threading.Thread(target=_tell, args=(child, done), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
        child.stop(grace_seconds=_GRACE_SECONDS)


def _tell(child: ChildProcess, done: threading.Event) -> None:
    """Log what the process warns of, and when it has ended."""
    with child.log.open(encoding="utf-8", errors="replace") as lines:
        rest, said = "", list[str]()
        while not done.wait(_LOOK_SECONDS):
            alive = child.running()
            rest += lines.read()
            *whole, rest = rest.split("\n")
            for one in whole:
                _repeat(one)
            said = [one for one in whole if not one.startswith("{")] or said
            if not alive:
                why = f": {' '.join(said[-5:])}" if said else ""
                error = f"committerd ingest has ended{why}. Its log is {child.log}"
                _log.error("ingest.ended", extra={"error": error})
                return


def _repeat(text: str) -> None:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found = json.loads(text)
        level = logging.getLevelNamesMapping()[str(found["level"]).upper()]
        if level >= logging.WARNING and str(found["event"]).startswith("ingest."):
            _log.log(level, str(found["event"]), extra={"error": found.get("error", "")})
