"""What `committerd dev` shows of the log."""

from __future__ import annotations

import logging

import pytest

from committerd.dev.screen import told


def record(logger: str, level: int, event: str) -> logging.LogRecord:
    return logging.LogRecord(logger, level, __file__, 1, event, None, None)


@pytest.mark.parametrize(
    ("logger", "level", "is_shown"),
    [
        ("committerd.stores.aws", logging.WARNING, True),
        ("kafka.net.selector", logging.WARNING, False),
        ("kafka.net.selector", logging.ERROR, False),
        ("kafkaesque", logging.WARNING, True),
        ("committerd.stores.aws", logging.INFO, False),
    ],
)
def test_warnings_are_shown_but_not_those_of_kafka_python(logger: str, level: int, is_shown: bool) -> None:
    news = told(record(logger, level, "something.happened"))
    assert (news is not None) is is_shown
