"""The progress of a long task, on standard error."""

from __future__ import annotations

import pytest

from committerd.commands import printing
from harness.child import without_waits


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task takes long."""
    monkeypatch.setattr(printing, "_FIRST_SECONDS", 0.0)


def test_a_short_task_prints_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(printing, "_FIRST_SECONDS", 3_600.0)
    printing.ProgressLine("staged records read", 2).add(1)
    printing.Reading()("has read 1 of 2 versions of the table's history")
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("slow")
def test_what_a_slow_machine_adds_is_taken_out_of_what_a_command_has_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printing.ProgressLine("staged records read", 2).add(1)
    printing.Reading()("has read 1 of 2 versions of the table's history")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "staged records read: 1 of about 2",
        "committerd has read 1 of 2 versions of the table's history",
    ]
    waited = "committerd: Kafka at kafka:9092 has not answered for 5 s; still waiting\n"
    assert without_waits(f"{printed.err}{waited}" + '{"good": true}\n') == '{"good": true}\n'
