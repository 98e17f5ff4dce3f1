"""Every test is collected by a lane, and every module and path that a command names is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest

from scripts import run_tests

ROOT = Path(__file__).resolve().parents[1]
OURS = ("bench", "committerd", "harness", "scripts", "tests")
RUN = re.compile(rf"-m ((?:{'|'.join(OURS)})(?:\.\w+)*)\b(?!\.?[({{])")
"""A module that is run: `python -m tests.hostile`; not one whose name a program completes."""
PATH = re.compile(rf"(?<![\w./])((?:{'|'.join(OURS)})/[\w./]*\w)")


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Each module under tests/, by its path from the root."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def has_tests(module: ast.Module) -> bool:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(
        (isinstance(node, functions) and node.name.startswith("test_"))
        or (isinstance(node, ast.ClassDef) and node.name.startswith("Test"))
        for node in module.body
    )


def commands() -> Iterator[tuple[str, str]]:
    """The files that name commands, and their texts."""
    files = [ROOT / "Makefile", ROOT / ".ci" / "run", *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    files += [path for folder in OURS for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
    for path in sorted(files):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def test_pytest_collects_every_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    lanes = [*chain(*run_tests.MEASURED), *run_tests.others(), *run_tests.DEPLOYING]
    missed, empty = [], []
    for path, module in modules():
        collected = Path(path).name.startswith("test_") and any(Path(path).is_relative_to(lane) for lane in lanes)
        if has_tests(module) and not collected:
            missed.append(path)
        if Path(path).name.startswith("test_") and not has_tests(module):
            empty.append(path)
    assert (missed, empty) == ([], [])


def test_every_folder_of_tests_is_a_package() -> None:
    """Otherwise two files of one name would be one module."""
    folders = {ROOT / Path(path).parent for path, module in modules() if has_tests(module)}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_module_that_a_command_runs_is_there() -> None:
    named = {(name, path) for path, text in commands() for name in RUN.findall(text)}
    assert {"scripts.demo", "tests.simulation", "tests.acceptance.turns", "bench"} <= {name for name, _ in named}
    assert [(name, path) for name, path in sorted(named) if not can_be_run(name)] == []


def can_be_run(name: str) -> bool:
    package, _, _ = name.rpartition(".")
    if package and not can_be_found(package):
        return False
    spec = find_spec(name)
    return spec is not None and (spec.submodule_search_locations is None or find_spec(f"{name}.__main__") is not None)


def can_be_found(name: str) -> bool:
    package, _, _ = name.rpartition(".")
    return (not package or can_be_found(package)) and find_spec(name) is not None


def test_every_path_of_the_makefile_is_there() -> None:
    paths = set(PATH.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    assert "tests/e2e/test_s3_faults.py" in paths
    assert [path for path in paths if not (ROOT / path).exists() and not list(ROOT.glob(f"{path}*"))] == []


@pytest.mark.parametrize("name", ["tests.acceptance.gone", "tests.gone.turns", "tests.acceptance"])
def test_a_module_that_is_not_there_would_be_found(name: str) -> None:
    assert RUN.findall(f".venv/bin/python -m {name} $(ARGS)") == [name]
    assert not can_be_run(name)
