"""One process of `committerd maintain` keeps many tables: what fails for one of them is no other's matter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from committerd_common.messages import Status
from harness.child import Launch
from harness.daemon import Daemon
from harness.fleet import COMMAND, Fleet
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import STAYS, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

SMALL = "[maintain]\nrows_per_fragment = 1000\n"
FRAGMENTS = 20


@pytest.fixture
def fleet(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Fleet]:
    names = [f"{dataset}-{letter}" for letter in ("a", "b", "c")]
    with Fleet(kafka=kafka.bootstrap_servers, names=names, folder=tmp_path, launch=launch) as made:
        yield made


def crumble(fleet: Fleet, *names: str) -> dict[str, int]:
    """Give these tables many small fragments through their queues; returns their rows."""
    rows = {}
    for name in names:
        scene = fleet.scenes[name]
        answers = scene.ask(*scene.table.appends(FRAGMENTS))
        assert {one.status for one in answers} == {Status.COMMITTED}
        rows[name] = scene.table.open().count_rows()
    return rows


def fragments(fleet: Fleet, name: str) -> int:
    return len(fleet.scenes[name].table.open().get_fragments())


def is_compacted(fleet: Fleet, name: str) -> bool:
    return fragments(fleet, name) < FRAGMENTS


def is_cleaned(process: Daemon, name: str) -> bool:
    return process.metric("committerd_maintenance_versions", dataset=name) > 0


def settings_file(fleet: Fleet, text: str = "") -> Path:
    file = fleet.folder / "maintain.toml"
    file.write_text(SMALL + (text or fleet.tables()))
    return file


def events(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def test_once_keeps_every_table_and_tells_which_one_failed(fleet: Fleet) -> None:
    good, bad, missing = fleet.scenes
    for name in (good, bad):
        fleet.scenes[name].table.create()
    member = fleet.member(**STAYS)
    member.wait_ready(text="3 active")
    rows = crumble(fleet, good, bad)
    file = settings_file(fleet)
    planned = fleet.command("maintain", "--dry-run", file=file)
    assert [planned.count(f"\n{name}\n") for name in (good, bad)] == [1, 1]
    broken = next(Path(fleet.scenes[bad].table.uri, "data").glob("*.lance"))
    broken.rename(broken.with_suffix(".away"))
    said = events(fleet.command("maintain", "--once", "--json", file=file, good=False))
    assert {one["dataset"] for one in said if one["event"] == "rewritten"} == {good}
    assert {one["dataset"] for one in said if one["event"] == "failed"} == {bad}
    assert {one["dataset"] for one in said if one["event"] == "cleaned"} >= {good}
    assert {one["dataset"] for one in said if one["event"] == "waits_for_table"} == {missing}
    assert said[-1] == {"event": "failed_tables", "datasets": [bad], "tables": 3}
    assert fragments(fleet, good) < FRAGMENTS
    broken.with_suffix(".away").rename(broken)
    repaired = fleet.command("maintain", "--once", "--tables", "1", file=file)
    assert f"{missing}: there is no table" in repaired
    for name in (good, bad):
        assert fragments(fleet, name) < FRAGMENTS
        assert fleet.scenes[name].table.open().count_rows() == rows[name]


@pytest.mark.long
def test_a_table_that_can_not_be_opened_is_tried_again_while_the_others_are_kept(fleet: Fleet) -> None:
    good, late, other = fleet.scenes
    for scene in fleet.scenes.values():
        scene.table.create()
    member = fleet.member(fleet.tables(good, other), **STAYS)
    member.wait_ready(text="2 active")
    rows = crumble(fleet, good, other)
    file = settings_file(fleet)
    process = fleet.member(
        file.read_text(), command=(*COMMAND, "maintain"), MAINTAIN__INTERVAL_SECONDS="1", MAINTAIN__CLEANUP_SECONDS="1"
    )
    failed = process.wait_line("maintain.failed", dataset=late)
    assert (failed["step"], failed["code"]) == ("open", "topic_missing")
    for name in (good, other):
        until(partial(is_compacted, fleet, name))
        until(partial(is_cleaned, process, name))
        assert fleet.scenes[name].table.open().count_rows() == rows[name]
        assert process.metric("committerd_maintenance_failures_total", dataset=name) == 0
    assert process.metric("committerd_maintenance_failures_total", dataset=late, step="open") >= 1
    until(lambda: f"{late}: it could not be opened" in process.ready()[1])  # but for the moment in which it is tried
    fleet.command("topics", "create", "--dataset", late, file=file)
    until(partial(is_cleaned, process, late), seconds=180)
    process.stop()
    assert process.code == 0


def test_tables_that_need_different_environments_are_refused(fleet: Fleet) -> None:
    first, second, _ = fleet.scenes
    for scene in fleet.scenes.values():
        scene.table.create()
    more = {second: f'[datasets.{second}.s3]\nprofile = "other-team"'}
    said = fleet.command("maintain", "--once", file=settings_file(fleet, fleet.tables(more=more)), good=False)
    assert f"datasets {first} and {second} differ in s3.profile" in said
    lacks = {second: f'[datasets.{second}.commit]\nallowed_operations = ["append"]'}
    said = fleet.command("maintain", "--once", file=settings_file(fleet, fleet.tables(more=lacks)), good=False)
    assert f"dataset {second}: commit.allowed_operations lacks create_index and reserve_fragments and rewrite" in said
