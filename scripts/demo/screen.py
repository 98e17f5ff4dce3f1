"""What the demo prints while it runs: steps, a line of progress, and a table at the end."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable

_PLAIN_SECONDS = 1.0
"""Minimum time between two lines of progress where a line can't be overwritten."""


class Screen:
    """Standard output. On a terminal progress is one line that is overwritten, elsewhere a new line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._shown_at = self._step_at = time.monotonic()
        self._shown = ""
        self._open = False
        """Whether the current line is progress, to be overwritten."""

    def step(self, text: str) -> None:
        """Begin a step."""
        self._close()
        print(f"==> {text}", flush=True)
        self._shown_at = self._step_at = time.monotonic()
        self._shown = ""

    def progress(self, text: str) -> None:
        """Show progress; may be called at any rate."""
        if text == self._shown:
            return
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{('    ' + text)[:width]}", end="", flush=True)
            self._open, self._shown = True, text
        elif time.monotonic() >= self._shown_at + _PLAIN_SECONDS:
            print(f"    {text}", flush=True)
            self._shown_at, self._shown = time.monotonic(), text

    def done(self, text: str) -> None:
        """Show the result of the step."""
        seconds = time.monotonic() - self._step_at
        self.line(f"    {text} ({seconds:.1f} s)")

    def line(self, text: str = "") -> None:
        """Print any other line."""
        self._close()
        print(text, flush=True)

    def leave(self) -> None:
        """End the line of progress, because others write now."""
        if self._open:
            print(flush=True)
            self._open = False

    def table(self, lines: Iterable[tuple[str, str, str]]) -> None:
        """Print (name, value, remark) below each other; values are aligned to the right."""
        lines = list(lines)
        name_width, value_width = (max(len(line[column]) for line in lines) for column in (0, 1))
        for name, value, remark in lines:
            self.line(f"  {name:<{name_width}}  {value:>{value_width}}  {remark}".rstrip())

    def _close(self) -> None:
        if self._open:
            print("\r\033[K", end="")
            self._open = False
