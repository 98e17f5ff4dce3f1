"""The main job on real brokers of several versions: the oldest one that docs/operating.md names, the newest, and
others.

The jars of each version are locked and downloaded once, and each runs in KRaft mode. Arguments are versions, and after
`--` those of pytest.

    python -m tests.acceptance.brokers                     all versions
    python -m tests.acceptance.brokers 3.3.2 -- -k main    one version, some tests
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.acceptance.pytest_runs import each_version

VERSIONS = ("3.3.2", "3.7.2", "3.9.1", "4.3.0")
TESTS = (
    "tests/e2e/test_main_job.py",
    "tests/e2e/test_membership.py",
    "tests/e2e/test_dead_letters.py",
    "tests/e2e/test_kafka_failures.py",
    "tests/kafka/test_queue.py",
    "tests/kafka/test_topics.py",
    "tests/kafka/test_operator.py",
    "tests/producers/test_client.py",
)
"""A queue from end to end, and every request that committerd and its client send to a broker."""


def run(version: str, arguments: list[str]) -> bool:
    """Run the tests on this version of Kafka."""
    bare = {name: value for name, value in os.environ.items() if name != "KAFKA_BOOTSTRAP_SERVERS"}
    environment = {"LANCE_LOG": "error"} | bare | {"COMMITTERD_TEST_KAFKA_VERSION": version}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.plugins.no_skips", *TESTS, *arguments]
    return subprocess.run(command, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(each_version("Kafka", sys.argv[1:], VERSIONS, run))
