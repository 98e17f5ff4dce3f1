"""While Kafka is away the client repeats no line of kafka-python; the application's own logging is unaffected."""

from __future__ import annotations

import logging
import threading

import pytest

from committerd.dev.parts import free_port
from committerd_client import CommitClient, KafkaUnavailable, quiet
from committerd_client.quiet import quieten_kafka


def _say(times: int, *, thread: str) -> None:
    logger = logging.getLogger("kafka.net.manager")

    def say() -> None:
        for number in range(times):
            logger.warning("<Connection %s>: connecting to broker-1:9092 failed", number)

    one = threading.Thread(target=say, name=thread)
    one.start()
    one.join()


def test_a_line_of_the_clients_threads_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    quieten_kafka("quiet-test-1")
    quieten_kafka("quiet-test-1")
    _say(50, thread="kafka-io-quiet-test-1-staged")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("name", ["the-applications-consumer", "quiet-test-2-etl", "of-quiet-test-2-staged"])
def test_an_applications_own_kafka_clients_are_left_alone(caplog: pytest.LogCaptureFixture, name: str) -> None:
    quieten_kafka("quiet-test-2")
    _say(50, thread=f"kafka-io-{name}")
    assert len(caplog.records) == 50


async def test_every_thread_of_a_client_that_can_not_connect_is_known() -> None:
    before, found, ended = set(threading.enumerate()), set[str](), threading.Event()

    def look() -> None:
        while not ended.wait(0.01):
            found.update(one.name for one in set(threading.enumerate()) - before)

    looking = threading.Thread(target=look, name="looks")
    looking.start()
    with pytest.raises(KafkaUnavailable):
        await CommitClient(
            f"127.0.0.1:{free_port()}", dataset="events", connect_timeout=1, client_id="quiet-test-5"
        ).start()
    ended.set()
    looking.join()
    of_client = {name for name in found if "quiet-test-5" in name}
    assert of_client
    assert of_client <= quiet._threads, of_client - quiet._threads


def test_handlers_and_levels_stay_as_the_application_set_them() -> None:
    loggers = [logging.getLogger(), logging.getLogger("kafka"), logging.getLogger("kafka.net.manager")]
    before = [(logger.level, logger.handlers[:], logger.propagate, logger.disabled) for logger in loggers]
    quieten_kafka("quiet-test-3")
    assert [(logger.level, logger.handlers[:], logger.propagate, logger.disabled) for logger in loggers] == before


async def test_the_cause_is_told_again_to_the_second_client_that_can_not_start() -> None:
    servers = f"127.0.0.1:{free_port()}"
    texts = []
    for _ in range(2):
        with pytest.raises(KafkaUnavailable) as raised:
            await CommitClient(servers, dataset="events", connect_timeout=1, client_id="quiet-test-4").start()
        texts.append(str(raised.value))
    assert all("kafka-python: " in text for text in texts), texts
