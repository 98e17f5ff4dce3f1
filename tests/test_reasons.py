"""The lists of reasons and causes are complete: the errors that the package raises have no other codes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from committerd.reasons import INVALID_REASONS, REFUSAL_CAUSES, UNSUPPORTED_REASONS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (ROOT / "committerd", ROOT / "producers" / "committerd_common")


def files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in package.rglob("*.py") if path.name != "reasons.py")


RAISED_BY = {
    INVALID_REASONS: ("InvalidRequest", "blamed"),
    UNSUPPORTED_REASONS: ("UnsupportedRequest",),
    REFUSAL_CAUSES: ("RefusedToRun",),
}


def raised(names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each literal code with which one of these is called, and where."""
    for path in files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in names:
                values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
                for value in values or node.args[1:2]:
                    if isinstance(value, ast.Constant):
                        yield str(value.value), f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.mark.parametrize("listed", RAISED_BY)
def test_every_code_that_is_raised_is_listed(listed: tuple[str, ...]) -> None:
    found = list(raised(RAISED_BY[listed]))
    assert len(found) > 5
    assert not [f"{where}: {code}" for code, where in found if code not in listed]


@pytest.mark.parametrize("listed", RAISED_BY)
def test_every_code_that_is_listed_can_occur(listed: tuple[str, ...]) -> None:
    sources = [path.read_text(encoding="utf-8") for path in files()]
    assert not [code for code in listed if not any(f'"{code}"' in source for source in sources)]


@pytest.mark.parametrize("listed", RAISED_BY)
def test_the_lists_are_in_order_and_hold_each_once(listed: tuple[str, ...]) -> None:
    assert list(listed) == sorted(set(listed))
