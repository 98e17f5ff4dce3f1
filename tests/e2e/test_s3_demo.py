"""`make demo STORE=s3`: the same job with the table in a bucket or a container."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.kafka import KafkaBroker, RunningKafka
from harness.s3 import S3Endpoint
from tests.e2e.test_demo import COMMITTING, LONG, SMALL, Demo, assert_nothing_is_left

pytestmark = [pytest.mark.kafka, pytest.mark.s3, pytest.mark.slow]


@pytest.fixture
def demo(tmp_path: Path, s3: S3Endpoint, kafka: KafkaBroker | RunningKafka) -> Iterator[Demo]:
    """A demo that starts a server itself, unless one is named."""
    made = Demo(tmp_path, kafka=kafka.bootstrap_servers)
    yield made
    made.close()


@pytest.mark.parametrize("store", ["s3", pytest.param("s3+ddb", marks=[pytest.mark.dynamodb, pytest.mark.long])])
def test_every_row_is_in_the_bucket_once(demo: Demo, store: str) -> None:
    assert demo.run(*SMALL, "--store", store) == 0, demo.output
    assert demo.value("committed") == 31  # the create too
    assert "ok     Every row is in the table exactly once" in demo.output
    assert f"The table: {store}://committerd-" in demo.output
    assert_nothing_is_left(demo)


@pytest.mark.long
@pytest.mark.parametrize(
    ("store", "scheme"),
    [pytest.param("azure", "az", marks=pytest.mark.azure), pytest.param("gcs", "gs", marks=pytest.mark.gcs)],
)
def test_every_row_is_in_the_container_once(demo: Demo, store: str, scheme: str) -> None:
    assert demo.run(*SMALL, "--store", store) == 0, demo.output
    assert demo.value("committed") == 31  # the create too
    assert "ok     Every row is in the table exactly once" in demo.output
    assert f"The table: {scheme}://committerd-" in demo.output
    assert_nothing_is_left(demo)


def test_it_can_be_interrupted_at_work_and_shows_no_keys(demo: Demo) -> None:
    demo.start(*LONG, "--store", "s3")
    demo.read_until(COMMITTING)
    commands = [" ".join(words) for words in demo.commands().values()]
    assert len(commands) > 3
    assert not [command for command in commands if "aws_" in command]
    demo.signal(signal.SIGINT)
    assert demo.end() == 128 + signal.SIGINT
    assert "Traceback" not in demo.output
    assert_nothing_is_left(demo)


def test_without_go_it_says_what_to_install(tmp_path: Path, kafka: KafkaBroker | RunningKafka) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    demo = Demo(
        temporary,
        kafka=kafka.bootstrap_servers,
        PATH="/nowhere",
        COMMITTERD_CACHE=str(tmp_path / "cache"),
        COMMITTERD_TEST_S3_ENDPOINT="",
    )
    assert demo.run(*SMALL, "--store", "s3") == 1
    assert "there is no `go`: install Go" in demo.output
    assert "Traceback" not in demo.output
    assert_nothing_is_left(demo)
