"""A process for many tables needs the ACLs that the pages list. A table without its ACLs stops no other."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.child import Launch
from harness.daemon import Daemon
from harness.fleet import Fleet, active, replace
from harness.java import kafka_tools
from harness.kafka import LOGIN, KafkaBroker
from harness.scene import STAYS, until
from tests.kafka.acls import Right, allow, allow_only, forbid, listed, login, names_missing

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

PAGE = Path(__file__).parents[2] / "docs" / "fleet.md"


@pytest.fixture
def fleet(strict_kafka: KafkaBroker, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Fleet]:
    """Two datasets with a table of a row, without topics."""
    names = [f"{dataset}-{letter}" for letter in "ab"]
    with Fleet(kafka=strict_kafka.bootstrap_servers, names=names, folder=tmp_path, launch=launch) as made:
        for scene in made.scenes.values():
            scene.table.create()
        yield made


def wait_named(right: Right, member: Daemon, *, ready: bool) -> None:
    """Wait until /readyz names the right that is missing, and says that the process is ready or not."""

    def named() -> bool:
        found, text = member.ready()
        return found is ready and names_missing(right, text)

    until(named)


def test_a_table_whose_right_is_missing_is_not_served_and_the_other_goes_on(
    fleet: Fleet, strict_kafka: KafkaBroker
) -> None:
    closed, kept = fleet.scenes
    file = fleet.folder / "datasets.toml"
    replace(file, fleet.tables())
    fleet.command("topics", "create", file=file)
    rights = [right for name in fleet.scenes for right in listed("`committerd run`", name, group=fleet.group)]
    group = next(one for one in rights if one[2] == fleet.group)
    allow_only(strict_kafka, [one for one in rights if one != group])
    member = fleet.member("", DAEMON__DATASETS_FILE=str(file), **STAYS, **login(strict_kafka))
    wait_named(group, member, ready=False)
    allow(strict_kafka, [group])
    member.wait_ready(text="2 datasets: 2 active, 0 standby, 0 not well")
    own = [one for one in rights if one[2].startswith(closed)]
    for number, right in enumerate(own, start=1):
        forbid(strict_kafka, right)
        # The table begins anew with other settings, and so asks Kafka for its rights.
        replace(file, fleet.tables(more={closed: f"commit.group_records_max = {number}"}))
        wait_named(right, member, ready=True)
        fleet.scenes[kept].committed()
        allow(strict_kafka, [right])
        until(lambda: active(member, closed))
        fleet.scenes[closed].committed()
    assert len(own) == 7
    assert [line["dataset"] for line in member.lines("start.done")].count(kept) == 1


def test_the_acls_by_prefix_on_the_page_are_enough_for_all_tables_whose_names_begin_alike(
    fleet: Fleet, strict_kafka: KafkaBroker
) -> None:
    """The committer creates the topics, too."""
    allow_only(strict_kafka, [])
    stem = next(iter(fleet.scenes)).removesuffix("a")
    meant = {
        "kafka:9092": strict_kafka.bootstrap_servers,
        "User:committer": f"User:{LOGIN[0]}",
        "lake.": stem,
        "lake": fleet.group,
    }
    section = PAGE.read_text("utf-8").partition("\n## ACLs\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^kafka-acls\.sh .*", section.replace("\\\n", ""), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        _, *words = (meant.get(word, word) for word in shlex.split(command))
        added = [*kafka_tools(), "org.apache.kafka.tools.AclCommand", *words]
        done = subprocess.run(added, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    member = fleet.member(**STAYS, **login(strict_kafka))
    member.wait_ready(text="2 datasets: 2 active, 0 standby, 0 not well")
    for scene in fleet.scenes.values():
        scene.committed()
