"""Runs Kafka's `kafka-configs.sh`, which sets quotas; kafka-python's admin client can't."""

from __future__ import annotations

import subprocess

from committerd.dev import kafka_node
from harness.java import INSTALL, java
from harness.kafka import kafka_jars

WINDOW_SECONDS = 11
"""Kafka adds up what a client sends in eleven windows of a second each, by default (`quota.window.num`). So the bytes
of at most this many seconds are free.
"""


def kafka_configs(servers: str, *words: str) -> str:
    """Run it with these arguments, except `--bootstrap-server`; returns what it prints. Fails if it fails."""
    program = kafka_node.command(java("Kafka's tools", install=INSTALL), kafka_jars())
    command = [*program, "kafka.admin.ConfigCommand", "--bootstrap-server", servers, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
