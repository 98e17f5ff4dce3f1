"""The texts of errors and refusals, read from the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from committerd.reasons import INVALID_REASONS, REFUSAL_CAUSES, UNSUPPORTED_REASONS
from scripts.programs import ROOT

_PLACE = "<!-- texts of errors -->"
_FOLDERS = ("committerd", "producers")
_LONGEST = 300


def _kinds() -> Mapping[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for kind, codes in (
        ("INVALID", INVALID_REASONS),
        ("UNSUPPORTED", UNSUPPORTED_REASONS),
        ("refusal to run", REFUSAL_CAUSES),
    ):
        for code in codes:
            kinds.setdefault(code, []).append(kind)
    return kinds


_KINDS = _kinds()
"""What each code is a reason or a cause of."""


class Message(NamedTuple):
    """What an error says; `…` stands for what differs."""

    code: str
    text: str


def with_messages(page: str) -> str:
    """The page, with the table in the place that it has for it."""
    return page.replace(_PLACE, table()) if _PLACE in page else page


def table() -> str:
    """All reasons and causes, with the texts that the code has for them, in Markdown."""
    texts: dict[str, list[str]] = {code: [] for code in sorted(_KINDS)}
    for code, text in sorted(set(found())):
        texts[code].append(_cell(text))
    rows = ["| code | of | texts |", "|---|---|---|"]
    rows += [f"| `{code}` | {', '.join(_KINDS[code])} | {'<br>'.join(given)} |" for code, given in texts.items()]
    return "\n".join(rows)


def found() -> Iterator[Message]:
    """Every error that is raised, or made, with a code of `reasons`."""
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    yield from _of(node)


def _of(call: ast.Call) -> Iterator[Message]:
    for given in [one.value for one in call.keywords if one.arg == "code"] + call.args[1:2]:
        for code in ast.walk(given):
            if isinstance(code, ast.Constant) and code.value in _KINDS and call.args:
                text = _text(call.args[0])
                if len(text.replace("…", "").split()) > 2:
                    yield Message(str(code.value), text)


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case _:
            return "…"


def _cell(text: str) -> str:
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    for sign in "\\|<>*_`[]{}":
        short = short.replace(sign, f"&#{ord(sign)};")
    return " ".join(short.split())
