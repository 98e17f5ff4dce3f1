"""Logs: one JSON object per line on stdout, or text for people.

An event is a fixed string (`logger.info("version committed", extra={...})`); variable parts go in `extra`, so that
lines can be counted and searched. Text from outside can neither forge a line nor flood the log: control characters are
escaped, long values are cut. A repeated line is written at most once in ten seconds, with the number of lines that were
suppressed (`suppressed`).
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal, TextIO

from committerd_common.repeats import Repeats

TEXT_CHARS_MAX = 1000
"""Limit of characters of one value."""
TRACEBACK_CHARS_MAX = 8000
ITEMS_MAX = 50
"""Limit of items of one list or mapping."""
_DEPTH_MAX = 4

_LIBRARIES = ("aiobotocore", "aiohttp", "asyncio", "botocore", "kafka", "urllib3")
"""Libraries whose debug lines would drown ours; the lines of botocore contain signed headers."""

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""Attributes of a record that do not come from `extra`."""
_dataset: ContextVar[str | None] = ContextVar("dataset", default=None)
_OURS = ("time", "level", "logger", "event")


def configure(level: str = "INFO", format: Literal["json", "text"] = "json", *, stream: TextIO | None = None) -> None:
    """Send all logs and warnings of the process to `stream` (default stdout), and replace any earlier configuration.

    `level`: a level name of `logging`. Libraries log only warnings; with level debug, INFO lines too.
    """
    handler = _Handler(sys.stdout if stream is None else stream)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in _LIBRARIES:
        quiet = logging.INFO if logging.getLogger().level <= logging.DEBUG else logging.WARNING
        logging.getLogger(name).setLevel(max(quiet, logging.getLogger().level))


@contextmanager
def lines_of(dataset: str) -> Iterator[None]:
    """Give the lines of this task, and of all that it starts, the field `dataset`, unless they have it."""
    token = _dataset.set(dataset)
    try:
        yield
    finally:
        _dataset.reset(token)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes log lines, and suppresses repeated lines."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        dataset = _dataset.get()
        if dataset is not None and not hasattr(record, "dataset"):
            record.dataset = dataset
        for one in self._repeats.admit(record):
            super().emit(one)

    def close(self) -> None:
        """Write the counts of suppressed lines. The standard library also calls this at exit."""
        if not self.stream.closed:
            for one in self._repeats.rest():
                super().emit(one)
        super().close()


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_line(record), ensure_ascii=True, allow_nan=False)


class TextFormatter(logging.Formatter):
    """`time level logger event key=value ...`, a traceback on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        line = _line(record)
        trace = line.pop("exception", None)
        head = " ".join(_printable(str(line.pop(name))) for name in _OURS)
        text = "".join([head, *(f" {key}={_shown(value)}" for key, value in line.items())])
        if trace:
            text += "".join(f"\n    {_printable(row)}" for row in str(trace).splitlines())
        return text


def _line(record: logging.LogRecord) -> dict[str, Any]:
    line: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": _cut(record.getMessage(), TEXT_CHARS_MAX),
    }
    for key, value in record.__dict__.items():
        if key not in _STANDARD:
            line[f"{key}_" if key in (*_OURS, "exception") else key] = _plain(value)
    if record.exc_info and record.exc_info[1] is not None:
        trace = "".join(traceback.format_exception(record.exc_info[1]))
        # The end of a traceback has the error and its place.
        line["exception"] = trace[-TRACEBACK_CHARS_MAX:]
    return line


def _plain(value: object, depth: int = 0) -> Any:
    """The value in types that JSON has, cut to the limits."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, bytes):
        return _cut(value.decode("utf-8", "backslashreplace"), TEXT_CHARS_MAX)
    if isinstance(value, str | BaseException) or depth == _DEPTH_MAX:
        return _cut(str(value), TEXT_CHARS_MAX)
    if isinstance(value, Mapping):
        pairs = _first(value.items())
        return {_cut(str(key), TEXT_CHARS_MAX): _plain(item, depth + 1) for key, item in pairs}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in _first(value)]
    return _cut(str(value), TEXT_CHARS_MAX)


def _first(items: Iterable[Any]) -> list[Any]:
    return [item for _, item in zip(range(ITEMS_MAX), items, strict=False)]


def _cut(text: str, chars_max: int) -> str:
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}... ({len(text)} characters)"


def _printable(text: str) -> str:
    """Escape characters that could move a terminal's cursor, end the line or reverse its direction."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    bare = text.isprintable() and text and not any(char in ' ="' for char in text)
    return text if bare or not isinstance(value, str) else json.dumps(_printable(text))
