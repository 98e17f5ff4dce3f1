"""Setup chooses a Python, or says how to get one before it downloads anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def bare_machine(tmp_path: Path) -> dict[str, str]:
    """An environment with only the shell's own programs."""
    for program in ("sh", "dirname", "cat"):
        found = shutil.which(program)
        assert found
        (tmp_path / program).symlink_to(found)
    return {"PATH": str(tmp_path), "HOME": str(tmp_path), "COMMITTERD_CACHE": str(tmp_path / "cache")}


def setup(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(ROOT / "scripts" / "setup.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def program(folder: str, name: str, script: str) -> None:
    path = Path(folder, name)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_a_python_it_says_how_to_get_one(bare_machine: dict[str, str]) -> None:
    done = setup(bare_machine)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Python 3.11 or newer" in done.stderr
    for system in ("apt-get install", "dnf install", "brew install"):
        assert done.stderr.count(system) == 1
    assert not os.path.exists(bare_machine["COMMITTERD_CACHE"])


def test_the_first_python_that_is_new_enough_is_taken(bare_machine: dict[str, str]) -> None:
    program(bare_machine["PATH"], "python3", "exit 1")
    program(bare_machine["PATH"], "python3.12", '[ "$1" = -c ] || echo "runs $1"')
    done = setup(bare_machine)
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs scripts/bootstrap.py\n", "")


def test_an_optimised_python_is_taken_before_an_earlier_one(bare_machine: dict[str, str], tmp_path: Path) -> None:
    system = tmp_path / "of the system"
    system.mkdir()
    environment = dict(bare_machine)
    environment["PATH"] += f":{system}"
    program(bare_machine["PATH"], "python3", '[ "$1" = -c ] && exit 3; echo "python3 runs $1"')
    assert setup(environment).stdout == "python3 runs scripts/bootstrap.py\n"
    program(str(system), "python3", '[ "$1" = -c ] || echo "the optimised one runs $1"')
    assert setup(environment).stdout == "the optimised one runs scripts/bootstrap.py\n"
    chosen = {**environment, "PYTHON": "python3"}
    assert setup(chosen).stdout == "python3 runs scripts/bootstrap.py\n"


def test_a_chosen_python_that_is_too_old_is_not_replaced_by_another(bare_machine: dict[str, str]) -> None:
    program(bare_machine["PATH"], "python3.12", "exit 0")
    done = setup({**bare_machine, "PYTHON": "/no/such/python"})
    assert done.returncode == 1
    assert "/no/such/python is not Python 3.11 or newer" in done.stderr
