"""Finds the processes that a program has started, directly or not: all of them inherit its environment."""

from __future__ import annotations

import contextlib
import uuid

import psutil

_VARIABLE = "TEST_STARTED"


class Mark:
    """A variable in the environment of a program, with a value that no other program has."""

    def __init__(self) -> None:
        self._value = uuid.uuid4().hex

    @property
    def environment(self) -> dict[str, str]:
        """What to add to the program's environment."""
        return {_VARIABLE: self._value}

    def processes(self) -> list[psutil.Process]:
        """All processes that have inherited the mark."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_VARIABLE) == self._value:
                    found.append(process)
        return found

    def commands(self) -> dict[psutil.Process, list[str]]:
        """The command lines of these processes; without those that have ended meanwhile."""
        found = {}
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                found[process] = process.cmdline()
        return found
