"""The groups of files that share a process of pytest-xdist.

A file is never divided. Files that need the same expensive part, or that would disturb each other, are one group, and
one process runs them one after the other.

Not loaded by default: `pytest -p tests.plugins.groups --numprocesses=4 --dist=loadfile`.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "a session of Spark": tuple(
        f"tests/spark/test_{name}.py"
        for name in (
            *("changes", "clouds", "datasource", "harness", "maintenance", "page"),
            *("secured_kafka", "signed", "stream", "write"),
        )
    ),
    "a broker that tests kill": (
        "tests/e2e/test_kafka_failures.py",
        "tests/e2e/test_limit_a_producer.py",
        "tests/e2e/test_topic_accidents.py",
        "tests/ingest/test_dead_letter_topic.py",
        "tests/kafka/test_failures.py",
        "tests/producers/test_client_trouble.py",
        "tests/producers/test_diagnosis.py",
    ),
    "topics of every demo": ("tests/e2e/test_demo.py", "tests/e2e/test_demo_spark.py", "tests/e2e/test_s3_demo.py"),
    "the folder that the conformance cases name": ("tests/conformance/",),
    "a broker with ACLs": (
        "tests/deploy/test_runbooks.py",
        "tests/e2e/test_maintain_rights.py",
        "tests/e2e/test_rights_of_commands.py",
        "tests/e2e/test_rights_of_groups.py",
        "tests/ingest/test_rights.py",
        "tests/kafka/test_members.py",
        "tests/kafka/test_rights.py",
    ),
    "a broker with TLS and logins": (
        "tests/e2e/test_connecting.py",
        "tests/e2e/test_secrets.py",
        "tests/e2e/test_secured_kafka.py",
    ),
    "a broker that is away": ("tests/kafka/test_outages.py", "tests/producers/test_client_outages.py"),
    "a dataset for commands": ("tests/commands/",),
}
"""By what its files share: their paths, or the beginnings of these.

Groups run first and in this order, so that none is left alone at the end.
"""


def group(test: str) -> str:
    """The group of a test, which pytest calls `PATH::NAME`; by default its file is one."""
    path = test.partition("::")[0]
    return next((name for name, paths in GROUPS.items() if path.startswith(paths)), path)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types here
    """Gives a process one group after the other, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the groups first; otherwise the order stays."""
    ranks = {name: rank for rank, name in enumerate(GROUPS)}
    items.sort(key=lambda item: ranks.get(group(item.nodeid), len(ranks)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)
