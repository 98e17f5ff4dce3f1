"""What runs beside the Appends of `make demo`: a Spark stream, upserts and deletes, a compaction."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.kafka import KafkaBroker, RunningKafka
from tests.e2e.test_demo import COMMITTING, Demo, assert_nothing_is_left

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def demo(tmp_path: Path, kafka: KafkaBroker | RunningKafka) -> Iterator[Demo]:
    """A demo on the Kafka of the test run."""
    made = Demo(tmp_path, kafka=kafka.bootstrap_servers)
    yield made
    made.close()


@pytest.mark.long
def test_spark_upserts_deletes_and_a_compaction_work_beside_the_appends(demo: Demo) -> None:
    assert demo.run("--producers", "2", "--appends", "60", "--rows", "5") == 0, demo.output
    again = 2 * 2  # the first and the twenty-first append of each producer
    assert demo.value("staged") == 1 + 60 + again + 5 + 5 + 10 + 1
    assert demo.value("duplicates") == again
    assert demo.value("other refusals") == 0
    assert "5 upserts, 5 deletes, 10 micro-batches of Spark, 1 compaction" in demo.output
    assert re.search(r"^  compaction +1  \d+ fragments became 1$", demo.output, re.MULTILINE)
    assert f"{(60 + 10) * 5 + 35} rows in" in demo.output
    assert "FAILED" not in demo.output
    assert_nothing_is_left(demo)


@pytest.mark.long
def test_spark_ends_with_it_when_it_is_interrupted(demo: Demo) -> None:
    demo.start("--producers", "2", "--appends", "20000", "--rows", "1")
    demo.read_until(COMMITTING)
    assert any("java" in words[0] for words in demo.commands().values() if words)
    demo.signal(signal.SIGINT)
    assert demo.end() == 130, demo.output
    assert_nothing_is_left(demo)


def test_without_java_the_rest_runs_and_it_says_so(tmp_path: Path, kafka: KafkaBroker | RunningKafka) -> None:
    demo = Demo(tmp_path, kafka=kafka.bootstrap_servers, PATH="/nowhere", JAVA_HOME="")
    assert demo.run("--producers", "2", "--appends", "60", "--rows", "5") == 0, demo.output
    assert "Without Spark's stream: Spark needs a whole Java 17 and there is none: install Java 17" in demo.output
    assert demo.value("staged") == 1 + 60 + 2 * 2 + 5 + 5 + 1
    assert "micro-batches" not in demo.output
    assert_nothing_is_left(demo)
