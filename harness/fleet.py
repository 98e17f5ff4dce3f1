"""Many datasets, and processes that commit to all of them, with their settings in a file."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from harness.child import ChildProcess, Launch, without_waits
from harness.daemon import Daemon
from harness.places import StorePlace
from harness.scene import QUICK, STAYS, Scene

COMMAND = (sys.executable, "-m", "committerd")


class Fleet:
    """Datasets by name, each with a table in `folder` unless it has a place. Closing it stops its members."""

    def __init__(
        self,
        *,
        kafka: str,
        names: Sequence[str],
        folder: Path,
        places: Mapping[str, StorePlace] | None = None,
        launch: Launch = ChildProcess,
    ) -> None:
        """`places`: by name, the tables that are elsewhere, and how committerd reaches them."""
        self._kafka = kafka
        self.group = f"fleet-{uuid.uuid4().hex[:12]}"
        self._launch = launch
        self._places = dict(places or {})
        self.folder = folder
        self.scenes: dict[str, Scene] = {}
        for name in names:
            self.add(name)
        self._members: list[Daemon] = []
        self._stack = contextlib.ExitStack()

    def add(self, name: str) -> Scene:
        """Add a dataset. Enter it if the fleet has been entered already."""
        own = self.folder / name
        own.mkdir()
        made = Scene(kafka=self._kafka, name=name, folder=own, place=self._places.get(name), launch=self._launch)
        self.scenes[name] = made
        return made

    def __enter__(self) -> Self:
        for scene in self.scenes.values():
            self._stack.enter_context(scene)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def tables(self, *names: str, more: Mapping[str, str] | None = None) -> str:
        """The tables of these datasets, all by default, in the settings file. `more`: lines to add, by name."""
        lines = []
        for name in names or tuple(self.scenes):
            lines += [f"[datasets.{name}]", f'uri = "{self.scenes[name].table.uri}"', (more or {}).get(name, "")]
            place = self._places.get(name)
            if place is not None:
                lines.append(f"[datasets.{name}.s3]")
                lines += [f'{key.removeprefix("S3__").lower()} = "{value}"' for key, value in place.settings.items()]
        return "\n".join(lines) + "\n"

    def member(self, text: str | None = None, *, command: Sequence[str] = (*COMMAND, "run"), **settings: str) -> Daemon:
        """Start a process for the datasets of this settings file; for all of them by default."""
        number = len(self._members) + 1
        file = self._file(number)
        file.write_text(self.tables() if text is None else text)
        made = Daemon(
            name=f"member-{number}",
            uri=None,
            kafka=self._kafka,
            settings=QUICK | {"CONFIG": str(file), "KAFKA__GROUP": self.group} | settings,
            log=self.folder / f"member-{number}.log",
            command=command,
            launch=self._launch,
        )
        self._members.append(made)
        return self._stack.enter_context(made)

    def replace_files(self, text: str) -> None:
        """Give this text to the settings files of all members."""
        for number in range(1, len(self._members) + 1):
            replace(self._file(number), text)

    def _file(self, number: int) -> Path:
        return self.folder / f"committerd-{number}.toml"

    def command(self, *words: str, file: Path | None = None, good: bool = True, **settings: str) -> str:
        """Run a command of committerd with a settings file, and more settings; returns its output.

        `good`: whether it must succeed.
        """
        log = Path(tempfile.mkstemp(prefix="command-", suffix=".log", dir=self.folder)[1])
        chosen = {"KAFKA__BOOTSTRAP_SERVERS": self._kafka, "KAFKA__GROUP": self.group} | STAYS | settings
        if file is not None:
            chosen["CONFIG"] = str(file)
        environment = {f"COMMITTERD_{key}": value for key, value in chosen.items()}
        process = self._launch([*COMMAND, *words], log=log, environment=environment)
        try:
            code = process.wait(timeout=180)
        finally:
            process.kill()
        printed = log.read_text()
        assert (code == 0) is good, f"exit code {code}\n{printed}"
        return without_waits(printed)


def replace(file: Path, text: str) -> None:
    """Give a file this text at once, so that nobody reads half of it."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def active(member: Daemon, name: str) -> bool:
    """Whether this process commits to the dataset."""
    return member.metric("committerd_active", dataset=name) == 1
