"""kafka-python's errors about what is normal stay out of the log; the application's own logging is unaffected."""

from __future__ import annotations

import logging
import threading

import pytest

from committerd.dev.parts import free_port
from committerd_client import CommitClient, KafkaUnavailable, kafka_log
from committerd_client.kafka_log import filter_kafka_log
from tests.producers.answering import answering, append


def _say(times: int, *, thread: str, level: int = logging.WARNING) -> None:
    logger = logging.getLogger("kafka.net.manager")

    def say() -> None:
        for number in range(times):
            logger.log(level, "<Connection %s>: connecting to broker-1:9092 failed", number)

    one = threading.Thread(target=say, name=thread)
    one.start()
    one.join()


def test_lines_of_the_clients_threads_become_one_warning_with_the_address(caplog: pytest.LogCaptureFixture) -> None:
    filter_kafka_log("quiet-test-1", "broker-1:9092")
    filter_kafka_log("quiet-test-1", "broker-1:9092")
    _say(50, thread="kafka-io-quiet-test-1-staged", level=logging.ERROR)
    _say(50, thread="quiet-test-1-reader", level=logging.ERROR)
    (line,) = caplog.records
    assert line.levelname == "WARNING"
    assert line.getMessage().startswith("Kafka at broker-1:9092: <Connection 0>: connecting to")


@pytest.mark.kafka
@pytest.mark.pylance
async def test_an_ordinary_life_of_a_client_logs_nothing(
    servers: str, dataset: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = {"bootstrap_timeout_ms": 60_000, "request_timeout_ms": 60_000}  # a busy Kafka is no cause
    monkeypatch.setattr("committerd_client.diagnosis._SHORT", patient)
    with answering(servers, dataset):
        for _ in range(3):
            async with CommitClient(servers, dataset=dataset, client_id="quiet-test-6") as client:
                await client.commit(append())
                assert (await client.status()).kafka_responds
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING and _of_client(one)] == []


async def test_a_broker_that_is_not_there_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    client = CommitClient(f"127.0.0.1:{free_port()}", dataset="events", connect_timeout=1, client_id="quiet-test-7")
    with pytest.raises(KafkaUnavailable, match="ECONNREFUSED"):
        await client.start()
    assert (await client.status()).why == "kafka"
    (line,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert line.levelname == "WARNING"


def _of_client(record: logging.LogRecord) -> bool:
    return "quiet-test-6" in (record.threadName or "") or record.name.startswith("committerd_client")


@pytest.mark.parametrize("name", ["the-applications-consumer", "quiet-test-2-etl", "of-quiet-test-2-staged"])
def test_an_applications_own_kafka_clients_are_left_alone(caplog: pytest.LogCaptureFixture, name: str) -> None:
    filter_kafka_log("quiet-test-2", "broker-2:9092")
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
    assert of_client <= kafka_log._threads.keys(), of_client - kafka_log._threads.keys()


def test_handlers_and_levels_stay_as_the_application_set_them() -> None:
    loggers = [logging.getLogger(), logging.getLogger("kafka"), logging.getLogger("kafka.net.manager")]
    before = [(logger.level, logger.handlers[:], logger.propagate, logger.disabled) for logger in loggers]
    filter_kafka_log("quiet-test-3", "broker-3:9092")
    assert [(logger.level, logger.handlers[:], logger.propagate, logger.disabled) for logger in loggers] == before


async def test_the_cause_is_told_again_to_the_second_client_that_can_not_start() -> None:
    servers = f"127.0.0.1:{free_port()}"
    texts = []
    for _ in range(2):
        with pytest.raises(KafkaUnavailable) as raised:
            await CommitClient(servers, dataset="events", connect_timeout=1, client_id="quiet-test-4").start()
        texts.append(str(raised.value))
    assert all("kafka-python: " in text for text in texts), texts
