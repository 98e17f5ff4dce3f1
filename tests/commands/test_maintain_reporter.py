"""What `committerd maintain` prints and logs."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from committerd.commands.maintain import reporter as reporter_module
from committerd.commands.maintain.reporter import Reporter
from committerd.maintenance.cleaning import CleanupResult
from committerd.maintenance.files import RemovalReason
from committerd.maintenance.versions import Choice, KeepReason

DELETION = {"key": "data/x.lance", "bytes": 1, "modified_ms": 1, "why": "version"}


def test_the_log_has_a_line_for_each_step_of_a_cleanup_and_not_for_each_file(caplog: pytest.LogCaptureFixture) -> None:
    reporter = Reporter(as_json=False, logged=True)
    with caplog.at_level(logging.DEBUG, logger="committerd.maintain"):
        for number in range(3):
            reporter.deletes(DELETION)
            reporter.deleted(CleanupResult(files=number + 1), 9)
    levels = [(one.levelname, one.message) for one in caplog.records]
    assert levels == [("DEBUG", "maintain.deletes"), ("INFO", "maintain.deleted")] * 3
    last: Any = caplog.records[-1]
    assert (last.files, last.files_found) == (3, 9)


def test_the_progress_of_a_long_cleanup_is_printed_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(reporter_module, "time", SimpleNamespace(monotonic=lambda: now))
    reporter = Reporter(as_json=False, logged=False)
    for step in range(10):
        now += 1
        reporter.deletes(DELETION)
        reporter.deleted(CleanupResult(files=1000 * (step + 1), bytes=2048), 20_000)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "deleted 4000 of 20000 files, 2.0 KiB ...",
        "deleted 8000 of 20000 files, 2.0 KiB ...",
    ]


@pytest.mark.parametrize(
    ("removable", "kept", "said"),
    [
        (
            (1, 2),
            {3: KeepReason.AGE, 4: KeepReason.AGE, 5: KeepReason.COUNT},
            "2 versions would be deleted; 3 kept (2 age, 1 count).",
        ),
        ((1,), {3: KeepReason.AGE}, "1 version would be deleted; 1 kept (1 age)."),
        ((), {3: KeepReason.AGE}, "0 versions would be deleted; 1 kept (1 age)."),
    ],
)
def test_a_dry_run_says_what_would_go(capsys: pytest.CaptureFixture[str], removable: Any, kept: Any, said: str) -> None:
    found: Any = SimpleNamespace(
        choice=Choice(removable=removable, kept=kept),
        count=lambda why: (
            (1, 10) if why is RemovalReason.UNNAMED else (2, 10) if why is RemovalReason.VERSION else (0, 0)
        ),
        unneeded_bytes=0,
    )
    Reporter(as_json=False, logged=False).cleanup(found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        said,
        "  2 files of 10 B: named only by these versions",
        "  1 file of 10 B: named by no version and no waiting record",
    ]
