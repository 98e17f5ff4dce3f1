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
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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


def main(arguments: list[str]) -> int:
    """Run the tests on each version and print a line for each; the exit code is 1 if one failed."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    versions, chosen = arguments[:split] or list(VERSIONS), arguments[split + 1 :]
    os.chdir(ROOT)
    bare = {name: value for name, value in os.environ.items() if name != "KAFKA_BOOTSTRAP_SERVERS"}
    environment = {"LANCE_LOG": "error"} | bare
    said, failed = [], False
    for version in versions:
        print(f"Kafka {version}", flush=True)
        started = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.plugins.no_skips", *TESTS, *chosen]
        done = subprocess.run(command, env=environment | {"COMMITTERD_TEST_KAFKA_VERSION": version}, check=False)
        failed |= done.returncode != 0
        result = "passed" if done.returncode == 0 else "FAILED"
        said.append(f"Kafka {version}: {result} in {time.monotonic() - started:.0f} s")
    print("\n".join(said))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
