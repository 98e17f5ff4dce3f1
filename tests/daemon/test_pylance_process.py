"""The process that builds versions with pylance may do whatever it likes: other programs stand for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import psutil
import pytest

from committerd.daemon import pylance_process
from committerd.daemon.pylance_process import PylanceProcess
from committerd.errors import StoreUnavailable, UnsupportedRequest
from committerd.stores.local import LocalStore
from committerd.table.needs import BuiltByPylance
from committerd_common.messages import Transaction

NEED = BuiltByPylance(1, Transaction(read_version=1))
ANSWERS = """
import json, sys
for line in sys.stdin:
    print(json.dumps({}), flush=True)
"""


def program(text: str) -> Sequence[str]:
    return [sys.executable, "-c", text]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    (tmp_path / "_versions").mkdir()
    return LocalStore(tmp_path, durable=False)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pylance_process, "_WAIT_SECONDS", 0.0)


async def refusal(command: Sequence[str], store: LocalStore) -> str:
    async with PylanceProcess(command) as pylance:
        with pytest.raises(UnsupportedRequest) as error:
            await pylance(store, NEED)
    assert error.value.code == "pylance_refused"
    return str(error.value)


@pytest.mark.parametrize("end", ["os.abort()", "os._exit(0)", "sys.stdin.readline(); os._exit(9)"])
async def test_one_that_ends_is_started_three_times(end: str, store: LocalStore, tmp_path: Path) -> None:
    note = f"open({str(tmp_path / 'started')!r}, 'a').write('x')"
    assert "exit code" in await refusal(program(f"import os, sys; {note}; {end}"), store)
    assert (tmp_path / "started").read_text() == "xxx"


async def test_one_that_says_nothing_is_ended(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pylance_process, "_SECONDS_MAX", 0.05)
    before = set(psutil.Process().children())
    assert "too long" in await refusal(program("import time; time.sleep(1000)"), store)
    assert set(psutil.Process().children()) <= before


@pytest.mark.parametrize("said", ["no JSON", "x" * 100_000])
async def test_one_that_says_something_else_is_ended(said: str, store: LocalStore) -> None:
    await refusal(program(f"print({said!r}, flush=True); import time; time.sleep(1000)"), store)


async def test_detached_versions_of_others_that_cannot_be_read_do_no_harm(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "_versions" / "d9223372036854775809.manifest").mkdir()
    (tmp_path / "_versions" / "d9223372036854775810.manifest").write_text("not a manifest")
    assert "exit code" in await refusal(program("import os; os.abort()"), store)
    assert len(list((tmp_path / "_versions").iterdir())) == 2


async def test_what_it_refuses_is_asked_once(store: LocalStore) -> None:
    answer = {"error": "no", "is_refused": True}
    text = ANSWERS.replace("{}", repr(answer).replace("{", "dict(**{").replace("}", "})"))
    assert "no" in await refusal(program(text), store)


async def test_a_version_that_is_not_there_is_no_fault_of_the_record(store: LocalStore) -> None:
    text = ANSWERS.replace("{}", "dict(built=1 << 63, next=None, refusal='')")
    async with PylanceProcess(program(text)) as pylance:
        with pytest.raises(StoreUnavailable):
            await pylance(store, NEED)


async def test_an_answer_that_comes_too_late_is_no_answer_to_the_next_question(store: LocalStore) -> None:
    """A version that is formed ahead may be dropped while it is built."""
    async with PylanceProcess(program("import time; time.sleep(1000)")) as pylance:
        with anyio.move_on_after(0.05):
            await pylance._ask(NEED)
        assert pylance._running is None


async def test_the_process_ends_with_the_committer(store: LocalStore) -> None:
    async with PylanceProcess(program(ANSWERS)) as pylance:
        assert await pylance._ask(NEED) == {}
        running = pylance._running
        assert running is not None
        process = psutil.Process(running.process.pid)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
