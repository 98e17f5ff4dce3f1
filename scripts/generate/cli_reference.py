"""`docs/reference/cli.md`, from the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from committerd.__main__ import cli

FILE, SOURCE = "docs/reference/cli.md", "committerd/commands"

_INTRODUCTION = """# Command line

Every command with its arguments and options, as `--help` shows them. [Commands for operators](../commands.md) says what
they do, with examples, rights and exit codes. `committerd run --help` lists [the settings](settings.md), too.

This page is generated from `committerd/commands` (`make docs`).
"""


def text() -> str:
    """Return the page: a section for each command."""
    return "\n".join([_INTRODUCTION, *_sections(cli, "committerd")])


def _sections(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    if isinstance(command, click.Group):
        if name != "committerd":
            yield _section(command, context, name)
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                yield from _sections(found, f"{name} {below}")
    else:
        yield _section(command, context, name)


def _section(command: click.Command, context: click.Context, name: str) -> str:
    lines = [f"## {name}", "", "```", " ".join([name, *command.collect_usage_pieces(context)]), "```", ""]
    if command.help:
        lines += [_escaped(_paragraphs(command.help)), ""]
    rows = list(_rows(command, context))
    if rows:
        lines += ["| option | meaning |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _rows(command: click.Command, context: click.Context) -> Iterator[str]:
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if isinstance(option, click.Option) and record is not None:
            names, meaning = record
            yield f"| `{names.replace('|', chr(92) + '|')}` | {_escaped(' '.join(meaning.split()))} |"


def _paragraphs(text: str) -> str:
    """Without click's marks, in paragraphs of one line."""
    clean = text.replace("\b", "").partition("\f")[0]
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", clean.strip()))


def _escaped(text: str) -> str:
    """Plain text in Markdown; what stands in backticks stays as it is."""
    parts = re.split(r"(`[^`\n]+`)", text)
    plain = [re.sub(r"([*_<>\[\]|])", r"\\\1", part) if at % 2 == 0 else part for at, part in enumerate(parts)]
    return "".join(plain)
