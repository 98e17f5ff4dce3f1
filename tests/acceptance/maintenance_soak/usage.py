"""What the processes of a run take: seconds of processor time, and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import psutil

_KINDS: Final = {
    "tests.acceptance.maintenance_soak.writers": "writers",
    "tests.acceptance.maintenance_soak.reader": "reader",
    "harness.short_hours": "maintenance",
    "committerd run": "committer",
    "kafka": "Kafka",
}
"""What is in the command line of a process, and what the process is; the first that fits."""
_OWN: Final = "the rest"
_OTHERS: Final = "(others on this machine)"


@dataclass(slots=True)
class Usage:
    """This process and all below it."""

    _seconds: dict[int, tuple[str, float]] = field(default_factory=dict)
    """What each process is, and its processor time; those that have ended too."""
    memory: dict[str, int] = field(default_factory=dict)
    """Resident bytes by what the process is, as of the last look."""

    def look(self) -> Mapping[str, float]:
        """Seconds of processor time until now, by what the process is; of those that ended, until the look before.

        What others on this machine took is counted from its start: only the difference of two looks says something.
        """
        own = psutil.Process()
        self.memory = {}
        for process in [own, *own.children(recursive=True)]:
            try:
                with process.oneshot():
                    line = " ".join(process.cmdline()) if process.pid != own.pid else ""
                    times = process.cpu_times()
                    memory = process.memory_info().rss
            except psutil.Error:
                continue
            kind = next((name for part, name in _KINDS.items() if part in line), _OWN)
            self._seconds[process.pid] = kind, times.user + times.system
            self.memory[kind] = self.memory.get(kind, 0) + memory
        found: dict[str, float] = {}
        for kind, seconds in self._seconds.values():
            found[kind] = found.get(kind, 0.0) + seconds
        machine = psutil.cpu_times()
        found[_OTHERS] = sum(machine) - machine.idle - getattr(machine, "iowait", 0.0) - sum(found.values())
        return found
