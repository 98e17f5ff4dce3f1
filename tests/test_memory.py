"""The memory of Start on a long history, and of the commands that run beside a committer, on large tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.long_history import uuid_of, write
from committerd.queue.port import TopicIdentity

ROOT = Path(__file__).resolve().parents[1]
IDENTITY = TopicIdentity(cluster_id="c", topic="events.staged", topic_id="AAAAAAAAAAAAAAAAAAAAAA")
BESIDE_A_COMMITTER_MIB = 100
"""The limit of a command: a Pod of 512 MiB has this much left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process that has ended."""

    out: str
    cpu_seconds: float
    resident_mib: float
    """Its peak memory."""


_TOLD_AT_EXIT = """
import atexit, pathlib, sys
peak = lambda: pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
atexit.register(lambda: print(int(peak()) / 1024, file=sys.stderr))
from committerd.__main__ import main
main()
"""


_VERSIONS_AUDITED = """
import atexit, json, pathlib, sys
peak = lambda: pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
import anyio
from committerd.commands import audit
from committerd.stores.local import LocalStore
from committerd.audit.spill import Spill
from committerd.audit.history import AuditedHistory
from committerd.table.versions import Table
audit.return_large_blocks()
with Spill() as spill:
    history = AuditedHistory(entries=spill.entries, uuids=spill.uuids)
    anyio.run(audit._read_history, Table(LocalStore(pathlib.Path(sys.argv[1]))), None, history)
    print(json.dumps({"findings": history.findings.by_code, "counts": history.counts}))
print(int(peak()) / 1024, file=sys.stderr)
"""


def run(*command: str, **environment: str) -> Ended:
    """Run a command whose last line on stderr is its memory in MiB."""
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        out, err = process.stdout.read(), process.stderr.read()
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    return Ended(out=out, cpu_seconds=used.ru_utime + used.ru_stime, resident_mib=float(err.splitlines()[-1]))


def command(folder: Path, words: Sequence[str], servers: str = "127.0.0.1:1", **environment: str) -> Ended:
    return run(
        sys.executable,
        "-c",
        _TOLD_AT_EXIT,
        *words,
        **{
            "COMMITTERD_DATASET__NAME": "events",
            "COMMITTERD_DATASET__URI": str(folder),
            "COMMITTERD_KAFKA__BOOTSTRAP_SERVERS": servers,
            "COMMITTERD_KAFKA__REQUEST_TIMEOUT_MS": "1000",
        }
        | environment,
    )


def start(folder: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.measure_start", str(folder), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def long_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A twentieth of 10,000 versions with 10 million records."""
    folder = tmp_path_factory.mktemp("long") / "t"
    write(folder, versions=501, members=1000, fragments=0, identity=IDENTITY)
    return folder


@pytest.fixture(scope="module")
def many_fragments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few versions with many fragments."""
    folder = tmp_path_factory.mktemp("many") / "t"
    write(folder, versions=40, members=50, fragments=90_000, identity=IDENTITY)
    return folder


@pytest.fixture(scope="module")
def whole(long_history: Path) -> dict[str, Any]:
    """A start that reads the whole history."""
    return start(long_history)


@pytest.fixture(scope="module")
def part(long_history: Path) -> dict[str, Any]:
    """A start whose ledger has room for the newest versions only."""
    return start(long_history, "--ledger-bytes", str(1024 * 1024))


def test_a_long_history_is_read_in_bounded_memory(whole: dict[str, Any]) -> None:
    assert (whole["version"], whole["next_offset"], whole["ledger_floor"]) == (501, 500_000, 0)
    assert whole["ledger_bytes"] == 8 * (500_000 + 501)
    assert whole["resident_mib_peak"] - whole["resident_mib_before"] < 64
    assert whole["unread"] == 500
    assert whole["progress"] >= 3


def test_the_history_is_read_until_the_ledger_is_full(part: dict[str, Any]) -> None:
    assert part["version"] == 501
    assert part["ledger_bytes"] <= 1024 * 1024
    assert 501 - 131 <= part["ledger_floor"] <= 501 - 100


def test_the_time_of_a_start_grows_as_the_history_does(whole: dict[str, Any], part: dict[str, Any]) -> None:
    versions = 501 - part["ledger_floor"]
    assert whole["cpu_seconds"] < 2 * (501 / versions) * part["cpu_seconds"]


def test_status_of_90_000_fragments_fits_beside_a_committer(many_fragments: Path) -> None:
    ended = command(many_fragments, ["status", "--json"])
    table = json.loads(ended.out)["table"]
    assert [one["fragments"] for one in table["versions"]][:2] == [90_000, 87_750]
    assert table["versions"][0]["data_bytes"] == 90_000_000
    assert (table["versions"][0]["operation"], table["versions"][0]["committed"]) == ("append", 50)
    assert ended.resident_mib < BESIDE_A_COMMITTER_MIB
    assert ended.cpu_seconds < 6


def test_an_audit_of_90_000_fragments_fits_beside_a_committer(many_fragments: Path) -> None:
    ended = run(sys.executable, "-c", _VERSIONS_AUDITED, str(many_fragments))
    found = json.loads(ended.out)
    assert found == {
        "findings": {},
        "counts": {"versions": 40, "versions of the queue": 39, "transactions committed": 1950},
    }
    assert ended.resident_mib < BESIDE_A_COMMITTER_MIB


def test_an_audit_of_a_long_history_fits_beside_a_committer(long_history: Path) -> None:
    ended = run(sys.executable, "-c", _VERSIONS_AUDITED, str(long_history))
    assert json.loads(ended.out)["counts"]["transactions committed"] == 500_000
    assert ended.resident_mib < BESIDE_A_COMMITTER_MIB


def test_uuids_of_a_long_history_are_those_of_its_records() -> None:
    assert len({uuid_of(offset) for offset in range(10_000)}) == 10_000
