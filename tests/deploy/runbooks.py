"""What the runbook pages tell an operator to run, as a test runs it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from tests.deploy import alerts

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(committerd [a-z][^`]*)`")


def shell_lines(page: str) -> list[str]:
    """The lines of the page's `sh` blocks."""
    return [line for language, block in _BLOCK.findall(page) if language == "sh" for line in block.splitlines() if line]


def programs(page: str) -> list[str]:
    """The page's `python` blocks."""
    return [block for language, block in _BLOCK.findall(page) if language == "python"]


def languages() -> set[str]:
    """Of all blocks of all pages."""
    return {language for page in alerts.pages().values() for language, _ in _BLOCK.findall(page)}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every `committerd ...` of every page, in blocks and in the text, with the page's name: its words."""
    for name, page in alerts.pages().items():
        lines = [line for line in shell_lines(page) if line.startswith("committerd ")]
        for line in (*lines, *_INLINE.findall(_BLOCK.sub("", page))):
            yield name, shlex.split(line)[1:]
