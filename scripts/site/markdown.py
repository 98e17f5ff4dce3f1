"""From GitHub's Markdown to that of Python-Markdown: lists and tables are written differently there."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ITEM = re.compile(r"^( *)([*+-]|\d+\.)( +)(?=\S)")
_FENCE = re.compile(r"^ *(```+|~~~+)")
_CODE = re.compile(r"`[^`\n]+`")
_WIDTH = 4
"""Spaces by which Python-Markdown indents what belongs to an item of a list."""


def for_python_markdown(text: str) -> str:
    """The same page: content of list items four spaces deep, an empty line before lists, bars in code of tables."""
    return "\n".join(_lines(text.split("\n")))


def _lines(lines: list[str]) -> Iterator[str]:
    depths = list[int]()  # where the content of each open item begins
    fence, before, shift = "", "", 0
    for line in lines:
        if fence:
            yield _moved(line, shift)
            fence = "" if line.strip() == fence else fence
            before = line
            continue
        if not line.strip():
            yield line
            before = line
            continue
        indent = len(line) - len(line.lstrip())
        item, opening = _ITEM.match(line), _FENCE.match(line)
        if before.strip() and not item and not opening and depths and indent < depths[-1] and not _ends_list(line):
            yield line.lstrip()  # the paragraph of an item goes on, without indentation
            before = line
            continue
        while depths and indent < depths[-1]:
            depths.pop()
        shift = _WIDTH * len(depths) - (depths[-1] if depths else 0)
        if opening:
            fence = opening[1]
        if item:
            if before.strip() and not depths and not _ITEM.match(before) and not before.startswith(" "):
                yield ""
            yield _moved(line, shift)
            depths.append(len(item[0]))
        else:
            yield _moved(_row(line), shift)
        before = line


def _ends_list(line: str) -> bool:
    return line.startswith(("#", "|", "<"))


def _moved(line: str, spaces: int) -> str:
    if not line.strip():
        return line
    return " " * spaces + line if spaces >= 0 else line[min(-spaces, len(line) - len(line.lstrip())) :]


def _row(line: str) -> str:
    """A row of a table; in code, Python-Markdown shows the backslash that GitHub needs before a bar."""
    if not line.lstrip().startswith("|"):
        return line
    return _CODE.sub(lambda found: found[0].replace(r"\|", "|"), line)
