"""The session of these tests starts quickly: its JVM uses the archive of Spark's classes."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from harness.spark import class_archive

pytestmark = [pytest.mark.spark]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory of a process is listed on Linux only")
def test_the_jvm_of_a_session_uses_the_archive_of_classes(spark: SparkSession) -> None:
    archive = class_archive()
    if archive is None:
        pytest.skip("the Java of Spark writes no archives of classes: use another one, such as Debian's openjdk-17")
    if not archive.is_file():
        pytest.skip("there is no archive of Spark's classes: run `make setup`")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    started = psutil.Process(gateway.proc.pid)
    assert any(
        archive.name in Path(f"/proc/{process.pid}/maps").read_text()
        for process in [started, *started.children(recursive=True)]
    ), f"the JVM did not accept {archive}: delete it, and run `make setup`"
