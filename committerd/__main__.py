"""The command line: collects the commands of `committerd.commands`, and turns errors into exit codes.

Exit codes: 0 success, 1 failure, 2 wrong usage or settings.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click
from click.shell_completion import CompletionItem

from committerd import __version__
from committerd.errors import CommitterError, SettingsError
from committerd.waiting import told

_COMMANDS = (
    "run",
    "dev",
    "append",
    "ingest",
    "commit",
    "promote",
    "datasets",
    "status",
    "explain",
    "tail",
    "audit",
    "dead",
    "topics",
    "probe",
    "heartbeat",
    "maintain",
    "pause",
    "resume",
    "position",
    "app",
    "recreate",
)
"""Names of modules in `committerd.commands`, each with a command of that name; `--help` lists them in this order."""


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT end the process at once. Some libraries ignore every error of an import, `KeyboardInterrupt` too."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


class _Commands(click.Group):
    """Imports the module of a command only when the command is used, which saves memory."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands without importing any, and options."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name) for name in _COMMANDS if name.startswith(incomplete)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        # Modules stay loaded. While they load, the garbage collector would search them many times, and free nothing.
        gc.disable()
        try:
            with _interruptible():
                found = getattr(importlib.import_module(f"committerd.commands.{cmd_name}"), cmd_name)
        finally:
            gc.freeze()
            gc.enable()
        assert isinstance(found, click.Command)
        return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="committerd")
def cli() -> None:
    """Queued commits for Lance tables.

    Producers stage lance.table.Transaction messages in Kafka. `committerd run` commits them to one table, in order, and
    publishes an outcome for each. The table stays plain Lance: other writers may commit to it at any time.

    Settings come from the environment (COMMITTERD_GROUP__NAME) and from a TOML file; `committerd run --help` lists
    them.
    """


def _threads_call_python() -> bool:
    calls = sys.modules.get("committerd_ingest.calls")
    return "obstore" in sys.modules or (calls is not None and calls.calls_left())


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """End the process without the end of the interpreter, if obstore is loaded, or a reader of rows does not respond.

    obstore's threads hand results over by calls into Python, and those of pylance ask a reader for rows. The
    interpreter does not wait for such a call to return, and the process would be aborted (SIGABRT) in the middle of it.
    """
    code = 0
    try:
        yield
    except SystemExit as end:
        if not _threads_call_python() or isinstance(end.code, str):
            raise
        code = end.code or 0
    if _threads_call_python():
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # closed, by us or by its reader
                stream.flush()
        os._exit(code)


def main() -> None:
    """Run the command line and end the process."""
    with _ended_at_once():
        run_command_line()


def run_command_line() -> None:
    """Run the command line in a process that goes on. Raises `SystemExit`, except for exit code 0."""
    try:
        with told(lambda text: click.echo(f"committerd: {text}", err=True)):
            _unwrapped()
    except click.ClickException as error:
        error.show()
        sys.exit(2 if isinstance(error, click.UsageError) else 1)
    except click.Abort:
        sys.exit(1)
    except SettingsError as error:
        click.echo(f"committerd: settings:\n{error}", err=True)
        sys.exit(2)
    except CommitterError as error:
        click.echo(f"committerd: {error.code}: {error}", err=True)
        sys.exit(1)


def _unwrapped() -> None:
    """Run the command line, and raise the single error of an exception group instead of the group."""
    try:
        cli.main(standalone_mode=False)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


if __name__ == "__main__":
    main()
