"""Prints tables, times and sizes for the commands, and progress on standard error."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import click

from committerd.errors import SettingsError

_FIRST_SECONDS, _PROGRESS_SECONDS = 0.5, 2.0
"""Time until progress is printed first, and between two lines. Nobody waits 2 s for the first one, with the start."""
_LONG_HISTORY = 1_000
"""Versions that take a second or more to read."""
_CELL_CHARS_MAX = 160
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"(\d{1,9})([smhd])")


def echo_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with aligned columns. Cuts cells at 160 characters, and escapes unprintable characters."""
    cells = [[plain(str(cell))[:_CELL_CHARS_MAX] for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    for line in [list(columns), *cells]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def echo_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print a line `name:   value` for each field, with aligned values."""
    width = max(len(name) for name, _ in fields) + 2
    for name, value in fields:
        click.echo(f"{name + ':':<{width}} {plain(value)}")


def echo_counts(counts: Mapping[str, int]) -> None:
    """Print a line for each count: the number and its name."""
    width = max((len(str(count)) for count in counts.values()), default=0)
    for what, count in counts.items():
        click.echo(f"  {count:>{width}}  {what}")


def plain(text: str) -> str:
    """The text with unprintable characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def when(timestamp_ms: int) -> str:
    """Unix milliseconds as a time of day in UTC, to the second; as a number where no calendar reaches."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # which one depends on the platform and on how far
        return f"{timestamp_ms} ms since 1970"


def duration(milliseconds: float) -> str:
    """A duration in the largest unit that fits at least once, with one decimal."""
    for unit in ("d", "h", "m"):
        if milliseconds >= _UNITS_MS[unit]:
            return f"{milliseconds / _UNITS_MS[unit]:.1f} {unit}"
    return f"{milliseconds / 1000:.1f} s"


def size(count: int) -> str:
    """A number of bytes in the largest binary unit that fits at least once."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(count) >= 1 << power:
            return f"{count / (1 << power):.1f} {unit}"
    return f"{count} B"


def since_ms(text: str, *, now_ms: int) -> int:
    """Unix milliseconds of an option such as `90m`, `3d` (ago) or `2026-05-31T12:00:00Z`. Raises `SettingsError`."""
    ago = _AGO.fullmatch(text)
    if ago:
        return max(now_ms - int(ago[1]) * _UNITS_MS[ago[2]], 0)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError(
            f"--since is {text!r}: give a number with s, m, h or d (ago), or a time such as 2026-05-31T12:00:00Z"
        ) from error
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


class _NowAndThen:
    """Says when the progress of a long task is printed: after half a second, then every two; never of a short one."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _FIRST_SECONDS

    def is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _PROGRESS_SECONDS
        return True


class ProgressLine:
    """Prints the progress of a long task on standard error every two seconds; prints nothing for a short one."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._when = _NowAndThen()

    def add(self, count: int) -> None:
        """Note that `count` more items are done."""
        self._done += count
        if self._when.is_due():
            click.echo(f"{self._what}: {self._done} of about {self._total}", err=True)


def tell_history(versions: int) -> None:
    """Say on standard error that up to so many versions are read, if that takes long: before anything else."""
    if versions > _LONG_HISTORY:
        click.echo(f"reads the table's history, up to {versions} versions", err=True)


class Reading:
    """Prints a text about a table's history that is being read, as `ProgressLine` does: for `Loading.report`."""

    def __init__(self) -> None:
        self._when = _NowAndThen()

    def __call__(self, text: str) -> None:
        if self._when.is_due():
            click.echo(f"committerd {text}", err=True)
