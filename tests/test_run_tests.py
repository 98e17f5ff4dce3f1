"""Which tests `make test` leaves out, and which it tries a second time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scripts import run_tests

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("failed", "named", "again"),
    [
        (["a"], ["a", "b", "c"], True),
        (["a", "b"], ["a", "b", "c"], True),
        (["a", "b", "c"], ["a", "b", "c"], False),
        (["a", "d"], ["a", "b", "c"], False),
        (["a"], [], False),
        ([], ["a"], False),
    ],
)
def test_at_most_two_tests_are_tried_again_and_only_those_that_are_named(
    failed: list[str], named: list[str], again: bool
) -> None:
    assert run_tests.may_be_tried_again(failed, named) is again


def test_each_test_that_is_named_is_there_and_has_a_cause() -> None:
    causes = run_tests.named_tests()
    assert all(len(cause.split()) > 5 for cause in causes.values())
    if causes:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *causes]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, {*causes} - {*done.stdout.splitlines()}) == (0, set()), done.stdout


def test_what_is_left_out_runs_each_night() -> None:
    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8"))
    assert "test-long" in nightly["jobs"]["run"]["strategy"]["matrix"]["target"]
    done = subprocess.run(["make", "--dry-run", "test-long"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "scripts.run_tests -m long tests --ignore=tests/deploy" in done.stdout
    assert run_tests.SHORTER == ["-m", "not long"]
