"""The generated messages in old and new protobuf, with its C implementation (upb) and in pure Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.packaging.environments import CLIENT, Environment, interpreters, make_environment, project

PROGRAM = Path(__file__).parent / "programs" / "messages.py"
VERSIONS = ("4.21.1", "4.25.9", "5.29.6", "6.33.6", "7.36.2")
"""The lowest allowed version, and the newest of each major version."""
SILENT_FROM = Version("5.27.1")
"""Older ones make Python 3.12 and newer warn about their C code; Python 3.14 can't load them."""


OLDEST, *_, NEWEST = [*interpreters().items()] * 2
"""Version and path of the interpreters of this machine."""


def _ranges() -> list[Requirement]:
    return [Requirement(one) for one in project(CLIENT)["dependencies"] if one.startswith("protobuf")]


def test_the_lowest_that_is_allowed_is_tested_and_so_is_each_major_version() -> None:
    lowest = min((one for requirement in _ranges() for one in requirement.specifier), key=lambda one: one.version)
    assert str(lowest) == f">={VERSIONS[0]}"
    assert [version.partition(".")[0] for version in VERSIONS[1:]] == ["4", "5", "6", "7"]
    assert all("8" not in requirement.specifier for requirement in _ranges())


@pytest.fixture(scope="module", params=VERSIONS)
def runtime(
    request: pytest.FixtureRequest, client_wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """An environment that holds this protobuf and the client's own files, on the oldest Python of this machine."""
    folder = tmp_path_factory.mktemp(f"protobuf-{request.param}") / "environment"
    requirements = [f"protobuf=={request.param}"]
    return make_environment(folder, OLDEST[1], wheels=[client_wheel], requirements=requirements, resolution="highest")


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_the_messages_load_without_a_warning_and_keep_what_is_in_them(
    runtime: Environment, implementation: str
) -> None:
    version = runtime.versions()["protobuf"]
    silent = Version(version) >= SILENT_FROM or Version(OLDEST[0]) < Version("3.12")
    done = runtime.run(
        PROGRAM,
        environment={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        warnings="error" if silent else "default",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [version, implementation]


def test_the_newest_python_loads_the_lowest_that_it_may_get(client_wheel: Path, tmp_path: Path) -> None:
    version, python = NEWEST
    made = make_environment(
        tmp_path / "environment",
        python,
        wheels=[client_wheel],
        requirements=[str(one) for one in _ranges()],
        resolution="lowest-direct",
    )
    done = made.run(PROGRAM)
    assert done.returncode == 0, (version, done.stderr)
