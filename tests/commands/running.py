"""Runs `committerd` in this process, and returns its output and exit code."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import click

from committerd.__main__ import cli, run_command_line
from harness.scene import Scene

_PATIENT = {
    "KAFKA__REQUEST_TIMEOUT_MS": "30000",
    "KAFKA__DELIVERY_TIMEOUT_MS": "30000",
    "KAFKA__FETCH_MAX_WAIT_MS": "100",
}
"""Timeouts for a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The output of `--json`, decoded."""
        return json.loads(self.out)


def run(scene: Scene, *words: str, **settings: str) -> Ran:
    """Run a command with the settings of the scene's dataset, and others as in the environment (`DATASET__URI`)."""
    chosen = {
        "DATASET__NAME": scene.name,
        "DATASET__URI": scene.table.uri,
        "KAFKA__BOOTSTRAP_SERVERS": scene.topics.servers,
    }
    bare = {name: value for name, value in os.environ.items() if not name.startswith("COMMITTERD_")}
    environment = bare | {f"COMMITTERD_{name}": value for name, value in (_PATIENT | chosen | settings).items()}
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "argv", ["committerd", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            run_command_line()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Ran(code=code, out=out.getvalue(), err=err.getvalue())


def printed(scene: Scene, *words: str, code: int = 0, **settings: str) -> str:
    """Run it and return its output; it must end with this code."""
    ran = run(scene, *words, **settings)
    assert ran.code == code, f"exit code {ran.code}\n{ran.out}\n{ran.err}"
    return ran.out


def answered(scene: Scene, *words: str, code: int = 0, **settings: str) -> Any:
    """Run it with `--json`; it must end with this code."""
    return json.loads(printed(scene, *words, "--json", code=code, **settings))


def commands() -> set[str]:
    """The names of all commands, such as `dead list`."""
    context, names = click.Context(cli), set[str]()
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            names |= {f"{name} {sub}" for sub in command.commands}
        if not isinstance(command, click.Group) or command.invoke_without_command:
            names.add(name)
    return names


@contextlib.contextmanager
def tailing(scene: Scene, *words: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """`committerd tail` with these words, in a process that ends with the block. `settings`: as for `run`."""
    chosen = {
        "DATASET__NAME": scene.name,
        "DATASET__URI": scene.table.uri,
        "KAFKA__BOOTSTRAP_SERVERS": scene.topics.servers,
    }
    bare = {name: value for name, value in os.environ.items() if not name.startswith("COMMITTERD_")}
    with subprocess.Popen(
        [sys.executable, "-m", "committerd", "tail", *words],
        env=bare | {f"COMMITTERD_{name}": value for name, value in (chosen | settings).items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
