"""Repeated log lines: each line is written at most once in ten seconds, with the number of repeats that were left out.

While a broker or a store is unavailable, a library may log the same line many times a second. Warnings and errors count
as the same line if they differ only in numbers or object names; other lines only if they are equal.
"""

from __future__ import annotations

import copy
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

SECONDS = 10.0
"""The shortest time between two equal lines, in seconds."""
_LINES_MAX = 1000
"""The number of different lines that are remembered."""
_COUNTED = "suppressed"
_VARYING = re.compile(r"<[^<>]*>|0x[0-9a-fA-F]+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\d+(?:\.\d+)?")
"""The parts of a line that may vary: object names, addresses, uuids and numbers."""
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", _COUNTED}


@dataclass(slots=True)
class _WrittenLine:
    since: float
    left_out: int = 0
    last: logging.LogRecord | None = None
    """The last repeat that was left out."""


class Repeats:
    """The lines that were written in the last ten seconds. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._written: OrderedDict[Hashable, _WrittenLine] = OrderedDict()
        """Oldest line first."""
        self._guard = threading.Lock()

    def admit(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        """The lines to write now: the summaries that are due, then the record unless it repeats a recent line."""
        now, key = self._clock(), _key(record)
        if key is None:
            yield record
            return
        with self._guard:
            due = self._due(now)
            written = self._written.get(key)
            if written is not None:
                written.left_out, written.last = written.left_out + 1, record
            else:
                self._written[key] = _WrittenLine(now)
        yield from due
        if written is None:
            yield record

    def rest(self) -> list[logging.LogRecord]:
        """A summary of each line that was left out and not written since, for the end of the process."""
        with self._guard:
            written, self._written = self._written, OrderedDict()
        return [_counted(one) for one in written.values() if one.left_out]

    def _due(self, now: float) -> list[logging.LogRecord]:
        """Forget the lines older than `SECONDS`; return a summary of each of them that was repeated."""
        due: list[logging.LogRecord] = []
        while self._written:
            key, oldest = next(iter(self._written.items()))
            old = now - oldest.since >= SECONDS
            if not old and len(self._written) < _LINES_MAX:
                break
            del self._written[key]
            if oldest.left_out:
                due.append(_counted(oldest))
                if old:
                    self._written[key] = _WrittenLine(now)
        return due


class RepeatFilter(logging.Filter):
    """A filter for a logger: passes each line once in ten seconds, with the number of repeats that were left out."""

    def __init__(self, concerns: Callable[[], bool] = lambda: True, *, clock: Callable[[], float] = time.monotonic):
        """`concerns` says whether to filter the current line; the filter passes all others."""
        super().__init__()
        self._concerns = concerns
        self._clock = clock
        self._written: OrderedDict[Hashable, _WrittenLine] = OrderedDict()
        self._guard = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._concerns():
            return True
        now, key = self._clock(), _key(record)
        if key is None:
            return True
        with self._guard:
            written = self._written.get(key)
            if written is not None and now - written.since < SECONDS:
                written.left_out += 1
                return False
            self._written.pop(key, None)
            self._written[key] = _WrittenLine(now)
            while len(self._written) > _LINES_MAX:
                self._written.popitem(last=False)
        if written is not None and written.left_out:
            record.msg, record.args = f"{record.getMessage()} (and {written.left_out} times more before)", ()
        return True


def _counted(written: _WrittenLine) -> logging.LogRecord:
    assert written.last is not None
    record = copy.copy(written.last)
    setattr(record, _COUNTED, written.left_out - 1)  # this one is written
    return record


def _key(record: logging.LogRecord) -> Hashable | None:
    """A key that equal lines share; None for a record that can't be formatted."""
    try:
        extra = [(name, str(value)) for name, value in record.__dict__.items() if name not in _STANDARD]
        text, error = record.getMessage(), str(record.exc_info[1]) if record.exc_info is not None else ""
    except Exception:  # noqa: BLE001  # logging must not fail: handlers report the error and go on
        return None
    if record.levelno < logging.WARNING:
        return record.name, record.levelno, text, tuple(extra)
    return record.name, record.levelno, *(_VARYING.sub("#", one) for one in (text, error, *(v for _, v in extra)))
