"""A part of the process that fails begins anew, and ends the process only if that does not help."""

from __future__ import annotations

import logging

import pytest
from anyio import lowlevel

from committerd import parts
from committerd.parts import Parts


class Part:
    """It fails at each start but the last."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.runs = 0

    async def run(self) -> None:
        self.runs += 1
        await lowlevel.checkpoint()
        if self.left:
            self.left -= 1
            raise KeyError("nobody expects this")


@pytest.fixture(autouse=True)
def _without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_WAIT_SECONDS", (0.0, 0.0))


async def test_a_part_that_fails_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    failed, part = list[str](), Part(3)
    await Parts(failed.append).keep("status", part.run)
    assert (failed, part.runs) == (["status"] * 3, 4)
    assert all(line.exc_info and line.__dict__["part"] == "status" for line in caplog.records)


async def test_the_process_ends_if_that_does_not_help_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parts, "_PATIENCE_SECONDS", 0.0)
    with pytest.raises(KeyError, match="nobody expects this"):
        await Parts().keep("watch", Part(1).run)
    assert (caplog.records[-1].message, caplog.records[-1].levelno) == ("part.given_up", logging.CRITICAL)


async def test_a_part_that_has_lived_has_its_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_PATIENCE_SECONDS", 1e-9)
    monkeypatch.setattr(parts, "_LIVED_SECONDS", 0.0)
    part = Part(5)
    await Parts().keep("watch", part.run)
    assert part.runs == 6
