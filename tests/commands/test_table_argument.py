"""`status`, `audit` and `maintain` take the URI of a table, as `append` and `dev` do."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from committerd.__main__ import cli
from committerd.commands.ingest import ingest, move
from committerd.commands.options import asked_branch, asked_dataset, settings
from committerd.errors import SettingsError
from tests.commands.running import run
from tests.commands.story import Story

OTHER = {"DATASET__NAME": "another", "DATASET__URI": "/nowhere/another.lance"}


@pytest.mark.kafka
@pytest.mark.pylance
def test_the_table_at_a_uri_is_taken_instead_of_that_of_the_settings(story: Story) -> None:
    scene = story.scene
    table = (scene.table.uri, "--name", scene.name)
    assert run(scene, "status", *table, "--json", **OTHER).json()["dataset"] == scene.name
    audited = run(scene, "audit", *table, **OTHER)
    assert (audited.code, "records passed" in audited.out) == (0, True), audited.err
    assert run(scene, "maintain", *table, "--dry-run", **OTHER).code == 0
    ran = run(scene, "status", "--name", scene.name)
    assert (ran.code, "give the URI of the table too" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("uri", "name", "found"),
    [
        ("/lake/users.lance", None, ("/lake/users.lance", "users")),
        ("users.lance", None, (f"{os.getcwd()}/users.lance", "users")),
        ("s3a://lake/users", "people", ("s3a://lake/users", "people")),
        ("file:///lake/events.lance/", None, ("/lake/events.lance", "ev-2")),  # the table of the settings
        (None, None, ("/lake/events.lance", "ev-2")),
    ],
)
def test_the_name_is_that_of_the_settings_for_their_table(
    monkeypatch: pytest.MonkeyPatch, uri: str | None, name: str | None, found: tuple[str, str]
) -> None:
    for variable in ("DATASET__URI=/lake/events.lance", "DATASET__NAME=ev-2", "KAFKA__BOOTSTRAP_SERVERS=a:1"):
        monkeypatch.setenv(*f"COMMITTERD_{variable}".split("="))
    dataset = settings(uri, name).dataset
    assert (dataset.uri, dataset.name) == found


def test_the_group_of_the_settings_is_that_of_their_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"DATASET__URI": "/lake/events.lance", "DATASET__NAME": "events"}
    for variable, value in (named | {"KAFKA__GROUP": "fleet", "KAFKA__BOOTSTRAP_SERVERS": "a:1"}).items():
        monkeypatch.setenv(f"COMMITTERD_{variable}", value)
    assert settings("/lake/events.lance").kafka.group == "fleet"
    assert settings("/lake/users.lance").kafka.group is None
    for variable in named:
        monkeypatch.delenv(f"COMMITTERD_{variable}")
    assert settings("/lake/users.lance").kafka.group == "fleet"  # whoever names no dataset means that of this table


def test_without_a_dataset_in_the_settings_the_uri_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("DATASET__URI", "DATASET__NAME"):
        monkeypatch.delenv(f"COMMITTERD_{variable}", raising=False)
    with pytest.raises(SettingsError, match="COMMITTERD_KAFKA__BOOTSTRAP_SERVERS"):
        settings(str(tmp_path / "t.lance"))
    monkeypatch.setenv("COMMITTERD_KAFKA__BOOTSTRAP_SERVERS", "a:1")
    assert settings(str(tmp_path / "t.lance")).dataset.name == "t"


def test_a_command_within_another_keeps_the_dataset_and_the_branch() -> None:
    asked = ["--dataset", "events", "--branch", "exp"]
    outer = ingest.make_context("ingest", [*asked, "move", "clicks", "0", "--offset", "1"])
    with move.make_context("move", ["clicks", "0", "--offset", "1"], parent=outer):
        assert (asked_dataset(), asked_branch()) == ("events", "exp")
    with move.make_context("move", ["clicks", "0", "--offset", "1", "--branch", "main"], parent=outer):
        assert (asked_dataset(), asked_branch()) == ("events", "main")


def test_whoever_is_told_to_choose_a_dataset_can_do_so() -> None:
    def without(command: click.Command, name: str) -> set[str]:
        if isinstance(command, click.Group) and not command.invoke_without_command:
            context = click.Context(command)
            inner = ((one, command.get_command(context, one)) for one in command.list_commands(context))
            return {
                found for one, made in inner if made is not None for found in without(made, f"{name} {one}".strip())
            }
        return set() if any("--dataset" in one.opts for one in command.params) else {name}

    assert without(cli, "") == {"append", "commit", "datasets", "dev", "run"}
