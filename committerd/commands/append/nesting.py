"""Finds lines of JSON that pyarrow does not survive, before it sees them.

pyarrow 24 takes the square of the depth to find the type of a nested value, and ends the process at some ten thousand
levels, and for a `null` where an object should be.
"""

from __future__ import annotations

import re

DEPTH_MAX = 200
"""Levels of arrays and objects. Arrow's own files have 64 at most."""

_NO_OPENER = bytes(one for one in range(256) if one not in b"[{\n")
_NULL_BEHIND = re.compile(rb"\}[ \t\r\n]*null")
_TOKENS = re.compile(rb'"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+"?|[\[\]{}\n]|null')
"""A text, which ends with its line at the latest, a bracket, the end of a line, or null."""


def require_readable(chunk: bytes, first: int) -> None:
    """Raise `ValueError` for a line that pyarrow must not see. `first`: the number of the first line."""
    if not _surely_readable(chunk):
        _look_at_each(chunk, first)


def _surely_readable(chunk: bytes) -> bool:
    """Whether no line can be bad, as a few searches of the whole text show.

    Where each line begins with `{` and ends with `}`, no value goes over the end of a line: JSON has no `}` before `{`.
    So the depth is at most the number of brackets that open in a line, those in texts included.
    """
    text = chunk.strip()
    between = text.count(b"}\n{") + text.count(b"}\r\n{")
    if text[:1] != b"{" or text[-1:] != b"}" or between != text.count(b"\n"):
        return False
    if b"null" in text and _NULL_BEHIND.search(text):
        return False
    return max(map(len, text.translate(None, _NO_OPENER).split(b"\n"))) <= DEPTH_MAX


def _look_at_each(chunk: bytes, first: int) -> None:
    depth, line, began = 0, first, first
    for found in _TOKENS.finditer(chunk):
        token = found[0]
        if token == b"\n":
            line += 1
        elif token in (b"[", b"{"):
            began = began if depth else line
            depth += 1
            if depth > DEPTH_MAX:
                raise ValueError(f"line {began}: the value is JSON that is nested too deep: {DEPTH_MAX} levels at most")
        elif token in (b"]", b"}"):
            depth = max(depth - 1, 0)
        elif token == b"null" and not depth:
            raise ValueError(f"line {line}: the value is a JSON null, and an object is needed")
