"""Who does not answer is told once, and only while somebody waits."""

from __future__ import annotations

import threading
import time

import pytest

from committerd import waiting


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(waiting, "_LOOK_SECONDS", 0.01)


def test_a_service_that_does_not_answer_is_named_once_however_many_requests_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, told = list[str](), threading.Event()

    def tell(text: str) -> None:
        said.append(text)
        told.set()

    with waiting.told(tell):
        with waiting.waiting_for("the store"), waiting.waiting_for("the store"):
            assert told.wait(60)
        monkeypatch.setattr(waiting, "SILENT_SECONDS", 3600.0)
        with waiting.waiting_for("Kafka"):
            time.sleep(0.1)
    assert len(said) == 1
    assert said[0].startswith("the store has not answered for ")


def test_without_a_listener_nothing_is_counted() -> None:
    before = set(threading.enumerate())
    with waiting.waiting_for("the store"):
        assert set(threading.enumerate()) <= before
