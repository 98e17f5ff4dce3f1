"""A Spark session for the run, and a table with its queue."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from committerd.dev.parts import free_port
from harness import PartMissingError
from harness.child import Launch
from harness.java import INSTALL_JDK, jdk
from harness.kafka import KafkaBroker, RunningKafka
from harness.spark import connect_server, spark_session
from tests.spark.queue import Queue

SPARK_4 = not pyspark.__version__.startswith("3.")


@pytest.fixture(scope="session")
def spark_java() -> None:
    """Skip where there is no Java to start Spark with."""
    try:
        jdk("Spark", install=INSTALL_JDK)
    except PartMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def connect_port() -> int:
    """The port on which the session serves Spark Connect, if it is Spark 4."""
    return free_port()


@pytest.fixture(scope="session")
def spark(spark_java: None, connect_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Started once; a test stops the streams that it starts."""
    folder = tmp_path_factory.mktemp("spark")
    with spark_session(folder, settings=connect_server(connect_port) if SPARK_4 else None) as session:
        yield session
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def queue(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Queue]:
    """A table that does not exist yet, and the committer of its queue."""
    with Queue(name=dataset, kafka=kafka.bootstrap_servers, folder=tmp_path, launch=launch) as made:
        yield made
