"""A small Spark that can run next to a broker and a committer: two cores, loopback only, no UI."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from committerd.dev.parts import free_port
from harness import PartMissingError
from harness.child import ChildProcess
from harness.java import BRIEFLY, INSTALL_JDK, jdk
from harness.ready_made import key_of, writes_archives

_JARS = Path(pyspark.__file__).resolve().parent / "jars"

CONFIG: Final = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": " ".join(BRIEFLY),
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "Europe/Berlin",  # differs from UTC, the time zone of the tables
    "spark.log.level": "ERROR",
}


def connect_server(port: int) -> dict[str, str]:
    """Settings with which the session's JVM serves Spark Connect too; needs Spark 4, whose package has the server."""
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }


def small_session(name: str, folder: Path, *, master: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session in this process, with its own JVM; both end together. `settings`: in addition to those here."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder: SparkSession.Builder = SparkSession.builder  # a class property, which mypy takes for a function
    builder = builder.master(master).appName(name)
    own = {
        "spark.driver.extraJavaOptions": " ".join([CONFIG["spark.driver.extraJavaOptions"], *_archived()]),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    for key, value in {**CONFIG, **own, **(settings or {})}.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # PySpark forks to start Java, and pylance warns of every fork.
        warnings.filterwarnings("ignore", message="lance is not fork-safe")
        return builder.getOrCreate()


def class_archive() -> Path | None:
    """The path of an archive of the classes that Spark loads (`spark_classes`), which need not exist.

    None if the Java of Spark writes no archives. A JVM uses an archive only with the Java and the jars that it was
    written with. It lies in the Python environment, as the jars do. Raises `PartMissingError` if there is no Java.
    """
    java = jdk("Spark", install=INSTALL_JDK)
    if not writes_archives(java):
        return None
    return Path(sys.prefix, f"spark-classes-{key_of(Path(java).resolve(), _JARS)}.jsa")


def quoted(option: str) -> str:
    """An option of Java as Spark reads it: a space in it does not end it."""
    return f'"{option}"'


def _archived() -> list[str]:
    """The options with which the JVM of a session uses the archive; none if there is no archive."""
    try:
        file = class_archive()
    except PartMissingError:  # PySpark reports what is missing
        return []
    return [quoted(f"-XX:SharedArchiveFile={file}")] if file is not None and file.is_file() else []


def _daemon() -> dict[str, str]:
    """The setting for a daemon of PySpark that has loaded packages (`spark_daemon`).

    On Linux only, where a process with threads may fork. Another PySpark than the environment's (`make spark-versions`)
    keeps its own daemon, as users have it.
    """
    if not sys.platform.startswith("linux") or not _JARS.is_relative_to(Path(sys.prefix).resolve()):
        return {}
    return {"spark.python.daemon.module": "harness.spark_daemon"}


@contextlib.contextmanager
def spark_session(folder: Path, *, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session for many tests. Each task is tried twice. `settings`: as in `small_session`."""
    session = small_session("tests", folder, master="local[2,2]", settings={**_daemon(), **(settings or {})})
    logging.getLogger("py4j").setLevel(logging.WARNING)
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # py4j leaves its sockets to the garbage collector
        session.stop()


@contextlib.contextmanager
def standalone_cluster(folder: Path, *, workers: int = 2) -> Iterator[str]:
    """A master and workers of Spark standalone, with one core each, as processes; yields the master's URL.

    An executor runs in a folder below `folder/worker-N`, with this Python and the packages of this repository.
    """
    port, jars = free_port(), Path(pyspark.__file__).parent / "jars"
    url = f"spark://127.0.0.1:{port}"
    root = Path(__file__).resolve().parents[1]
    (core,) = jars.glob("spark-core_*.jar")
    environment = os.environ | {
        "SPARK_HOME": str(jars.parent),
        "SPARK_SCALA_VERSION": core.name.split("_")[1].split("-")[0],  # else workers look for it among build folders
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": f"{root}:{root / 'producers'}",
    }
    program = [str(jdk("Spark", install=INSTALL_JDK)), "-Xmx256m", *BRIEFLY, "-cp", f"{jars}/*"]
    place = ["--host", "127.0.0.1", "--webui-port", "0"]
    commands = [["org.apache.spark.deploy.master.Master", *place, "--port", str(port)]]
    for number in range(workers):
        own = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{number}")]
        commands.append(["org.apache.spark.deploy.worker.Worker", *place, *own, url])
    with contextlib.ExitStack() as stack:
        for number, words in enumerate(commands):
            log = folder / f"spark-{number}.log"
            process = ChildProcess([*program, *words], log=log, folder=folder, environment=environment)
            stack.callback(process.kill)
        yield url
