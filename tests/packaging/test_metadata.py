"""Metadata and content of the two wheels."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import committerd
from tests.packaging.environments import CLIENT, COMMITTER, PYTHONS, project

BROUGHT = {"anyio", "exceptiongroup", "kafka-python", "protobuf", "pyarrow", "typing-extensions"}
"""The client's requirements; the two that its README omits apply on Python 3.10 only."""


def test_both_have_the_version_of_the_program_and_the_committer_asks_for_the_client_of_its_own() -> None:
    assert project(COMMITTER)["version"] == project(CLIENT)["version"] == committerd.__version__
    asked = [one for one in project(COMMITTER)["dependencies"] if one.startswith("committerd-client")]
    assert asked == [f"committerd-client=={committerd.__version__}"]


def test_the_client_brings_what_it_says_and_nothing_of_the_committer() -> None:
    assert {Requirement(one).name for one in project(CLIENT)["dependencies"]} == BROUGHT


def test_no_file_is_in_both_wheels(client_wheel: Path, committer_wheel: Path) -> None:
    def packages(wheel: Path) -> dict[str, set[str]]:
        names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
        return {top: {name for name in names if name.startswith(f"{top}/")} for top in {n.split("/")[0] for n in names}}

    client, committer = packages(client_wheel), packages(committer_wheel)
    assert client.keys() == {
        "committerd_batch", "committerd_client", "committerd_common", "committerd_daft", "committerd_ingest",
        "committerd_login", "committerd_ray", "committerd_spark", "pyspark_committerd",
    }  # fmt: skip
    assert committer.keys() == {"committerd"}
    assert all(f"{package}/py.typed" in files for package, files in (client | committer).items())


def test_the_versions_of_python_that_are_named_are_those_that_are_tested() -> None:
    named = [re.search(r"3\.\d+$", one) for one in project(CLIENT)["classifiers"]]
    assert tuple(one[0] for one in named if one) == PYTHONS
    assert SpecifierSet(project(CLIENT)["requires-python"]) == SpecifierSet(f">={PYTHONS[0]}")


@pytest.mark.parametrize("python", PYTHONS)
def test_one_range_of_protobuf_applies_on_each_python(python: str) -> None:
    ranges = [Requirement(one) for one in project(CLIENT)["dependencies"] if one.startswith("protobuf")]
    applying = [one for one in ranges if one.marker is None or one.marker.evaluate({"python_version": python})]
    assert len(applying) == 1
