"""The table of operations: all of them are in it, and the type checker reports a missing one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from committerd.lance.format.kind import Kind
from committerd.lance.operations import table
from committerd.lance.operations.table import operation
from committerd_common.messages import Transaction

ROOT = Path(__file__).parents[2]
CASE = re.compile(r"        case Kind\.(\w+):\n            return (\w+)\n")


@pytest.mark.parametrize("kind", Kind)
def test_each_operation_has_its_record(kind: Kind) -> None:
    assert operation(kind).kind is kind


def test_the_operations_are_those_of_the_message() -> None:
    assert set(Kind) == {one.name for one in Transaction.DESCRIPTOR.oneofs_by_name["operation"].fields}


def test_leaving_one_out_is_a_type_error(tmp_path: Path) -> None:
    """mypy accepts the table as it is, and rejects each table that lacks one operation."""
    source = Path(table.__file__).read_text()
    names = [kind for kind, _ in CASE.findall(source)]
    assert sorted(names) == sorted(Kind.__members__)
    (tmp_path / "whole.py").write_text(source)
    for name in names:
        lacking = CASE.sub(lambda case, name=name: "" if case[1] == name else case[0], source)  # type: ignore[misc]
        (tmp_path / f"without_{name}.py").write_text(lacking)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", str(tmp_path)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    errors = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert {Path(line.partition(":")[0]).stem for line in errors} == {f"without_{name}" for name in names}, checked
    assert all("assert_never" in line for line in errors)
