"""Log lines: one per event, whatever data it has."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal

import pytest

from committerd.daemon import logs
from committerd_common import repeats

Format = Literal["json", "text"]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore the root logger: pytest captures with it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    for name in ("kafka", "botocore", "asyncio"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def written(format: Format = "json", /, **extra: object) -> str:
    """The line of one event with this data."""
    stream = io.StringIO()
    logs.configure("info", format, stream=stream)
    logging.getLogger("committerd.test").info("version.committed", extra=extra)
    return stream.getvalue()


def line(**extra: object) -> dict[str, Any]:
    text = written(**extra)
    assert text.endswith("\n")
    assert text.count("\n") == 1
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def test_a_line_is_a_json_object_with_time_level_logger_event_and_data() -> None:
    found = line(version=7, outcomes=["a", "b"], seconds=0.25, late=None, active=True)
    assert list(found)[:4] == ["time", "level", "logger", "event"]
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "info",
        "logger": "committerd.test",
        "event": "version.committed",
        "version": 7,
        "outcomes": ["a", "b"],
        "seconds": 0.25,
        "late": None,
        "active": True,
    }


def test_text_from_outside_can_not_forge_a_line_or_move_the_cursor() -> None:
    forged = 'x"}\n{"event": "table dropped"}\r\x1b[2J\u202e\x85\u2028\x00\ud800'
    assert line(producer=forged)["producer"] == forged
    for format in ("json", "text"):
        text = written(format, producer=forged, nested={forged: [forged]}).removesuffix("\n")
        assert text.isprintable()
        assert text.isascii()


def test_long_values_are_cut_and_say_so() -> None:
    found = line(text="x" * 5000, many=list(range(1000)), body=b"\xff" + b"y" * 5000)
    assert found["text"] == "x" * 1000 + "... (5000 characters)"
    assert found["many"] == list(range(50))
    assert len(found["body"]) < 1100


def test_values_that_json_does_not_know_are_told_as_text() -> None:
    class Colour(Enum):
        RED = "red"

    deep: list[Any] = []
    deep.append(deep)
    found = line(
        nan=float("nan"),
        infinite=float("-inf"),
        enum=Colour.RED,
        error=KeyError("k"),
        path=object,
        deep=deep,
        keys={1: {2: "x"}},
        sets={5},
    )
    assert found["nan"] == "nan"
    assert found["infinite"] == "-inf"
    assert found["enum"] == "red"
    assert found["error"] == "'k'"
    assert found["path"] == "<class 'object'>"
    assert found["deep"] == [[[["[[...]]"]]]]
    assert found["keys"] == {"1": {"2": "x"}}
    assert found["sets"] == [5]


def test_data_never_hides_the_event() -> None:
    found = line(event="other", level="debug")
    assert found["event"] == "version.committed"
    assert found["level"] == "info"
    assert found["event_"] == "other"


@pytest.mark.parametrize("format", ["json", "text"])
def test_an_exception_is_told_from_its_end(format: Format) -> None:
    stream = io.StringIO()
    logs.configure("info", format, stream=stream)
    try:
        raise ValueError("x" * 20_000 + " at the end\x1b")
    except ValueError:
        logging.getLogger("committerd").exception("daemon.failed")
    text = stream.getvalue()
    assert "at the end" in text
    assert "\x1b" not in text
    assert len(text) < 10_000
    if format == "json":
        assert json.loads(text)["exception"].endswith(" at the end\x1b\n")


def test_text_for_people_quotes_what_has_spaces() -> None:
    text = written("text", version=7, reason="no table", empty="", uuid="a-b", list=[1, "x y"])
    head, _, data = text.partition(" committerd.test ")
    assert head.endswith(" info")
    assert data == ('version.committed version=7 reason="no table" empty="" uuid=a-b list=[1, "x y"]\n')


def test_libraries_never_log_their_debug_lines() -> None:
    stream = io.StringIO()
    logs.configure("debug", stream=stream)
    for name in ("kafka.client", "botocore.auth", "asyncio"):
        logging.getLogger(name).debug("a header with a signature")
        logging.getLogger(name).info("connected")
    logging.getLogger("committerd").debug("intake.fetched")
    events = [json.loads(text)["event"] for text in stream.getvalue().splitlines()]
    assert events == ["connected", "connected", "connected", "intake.fetched"]


def test_a_higher_level_holds_for_libraries_too() -> None:
    stream = io.StringIO()
    logs.configure("error", stream=stream)
    logging.getLogger("kafka").warning("reconnecting")
    assert stream.getvalue() == ""


def test_warnings_become_lines() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old settings", DeprecationWarning, stacklevel=1)
    assert json.loads(stream.getvalue())["logger"] == "py.warnings"


def test_lines_go_to_stdout_once_however_often_it_is_configured() -> None:
    program = (
        "from committerd.daemon import logs; import logging; logs.configure(); logs.configure(); "
        "logging.getLogger('x').info('once')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def warning(text: str = "broker is away", level: int = logging.WARNING, **extra: object) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": "kafka.net", "levelno": level, "levelname": "WARNING", "msg": text})
    record.__dict__.update(extra)
    return record


def test_a_line_is_written_once_in_ten_seconds_and_counts_those_left_out() -> None:
    clock = Clock()
    said = repeats.Repeats(clock=clock)
    written: list[logging.LogRecord] = []
    for _ in range(300):  # 30 s, ten a second
        written += said.admit(warning())
        clock.now += 0.1
    written += said.rest()
    assert len(written) <= 4
    assert len(written) + sum(getattr(one, "suppressed", 0) for one in written) == 300


def test_what_was_left_out_is_counted_even_if_the_line_never_comes_again() -> None:
    clock = Clock()
    said = repeats.Repeats(clock=clock)
    for _ in range(3):
        list(said.admit(warning()))
    clock.now += 11
    late, other = said.admit(warning("something else"))
    assert (late.getMessage(), late.__dict__["suppressed"]) == ("broker is away", 1)
    assert other.getMessage() == "something else"
    assert said.rest() == []


def test_warnings_that_differ_in_numbers_and_names_of_objects_are_the_same() -> None:
    said = repeats.Repeats(clock=Clock())
    alike = [
        warning("<Conn id=1 port=9092>: no answer in 10.5 s"),
        warning("<Conn id=2 port=9093>: no answer in 11 s"),
        warning("<Conn id=2 port=9093>: no answer in 12 s", offset=7),
    ]
    assert [len(list(said.admit(one))) for one in alike] == [1, 0, 1]  # with other data it is another line
    assert len(list(said.admit(warning("refused", error="no such topic")))) == 1
    assert len(list(said.admit(warning("refused", error="not allowed")))) == 1


def test_a_line_for_each_version_stays() -> None:
    said = repeats.Repeats(clock=Clock())
    lines = [warning("version.committed", logging.INFO, version=n) for n in range(5000)]
    assert sum(len(list(said.admit(one))) for one in lines) == 5000
    assert len(list(said.admit(warning("start.again", logging.INFO, reason="x")))) == 1
    assert len(list(said.admit(warning("start.again", logging.INFO, reason="x")))) == 0


def test_a_flood_of_different_lines_takes_no_memory_without_bound() -> None:
    said = repeats.Repeats(clock=Clock())
    for number in range(20_000):
        word = "".join(chr(97 + int(digit)) for digit in str(number))
        list(said.admit(warning(word)))
        list(said.admit(warning(word)))
    assert len(said._written) <= 1000


def test_the_daemons_log_holds_a_repeated_line_once_and_the_count_at_its_end() -> None:
    program = (
        "import logging; from committerd.daemon import logs; logs.configure(); log = logging.getLogger('kafka.net')\n"
        "for n in range(500): log.error('%s: connection refused', n)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, last = (json.loads(text) for text in done.stdout.splitlines())
    assert first["event"] == "0: connection refused"
    assert (last["event"], last["suppressed"]) == ("499: connection refused", 498)


def test_a_filter_of_a_logger_counts_in_the_next_line_and_leaves_others_alone() -> None:
    clock, ours = Clock(), True
    filtered = repeats.RepeatFilter(lambda: ours, clock=clock)
    assert [filtered.filter(warning()) for _ in range(4)] == [True, False, False, False]
    ours = False
    assert filtered.filter(warning())
    ours = True
    clock.now += 10
    assert filtered.filter(again := warning())
    assert again.getMessage() == "broker is away (and 3 times more before)"


def test_a_record_that_can_not_be_made_a_text_raises_in_nobody_who_logs(capsys: pytest.CaptureFixture[str]) -> None:
    broken = logging.makeLogRecord({"name": "kafka", "levelno": logging.WARNING, "msg": "%d of %d", "args": (1,)})
    handler = logs._Handler(io.StringIO())
    for _ in range(2):
        handler.handle(broken)
    assert "not enough arguments" in capsys.readouterr().err
    filtered = repeats.RepeatFilter()
    assert [filtered.filter(broken) for _ in range(2)] == [True, True]
