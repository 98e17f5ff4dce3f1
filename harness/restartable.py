"""A child process with a folder of its own, which tests stop, kill, freeze and start again."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from harness.child import ChildProcess


class Restartable(ABC):
    """A program that keeps its files over `kill` and `start`.

    As a context manager it starts the program, and at the end stops it and removes its files.
    """

    name: str
    """Its name in folders, logs and errors."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: where its files are; None = a temporary folder, which `close` removes."""
        self._is_temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix=f"committerd-{self.name}-"))
        self._process: ChildProcess | None = None

    @abstractmethod
    def start(self) -> Self:
        """Start, or start again with the same address and files, and wait until the program responds.

        Raises `PartMissingError` if the program is missing, and `RuntimeError` with the end of its log if it does not
        start.
        """

    @property
    def log(self) -> Path:
        """The file that its output is appended to."""
        return self.folder / f"{self.name}.log"

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process id of the running process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after ten seconds."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        """Send SIGKILL; the files stay on disk as after a crash."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def freeze(self) -> None:
        """Stop every thread of the program: connections stay open, and it does not respond until `thaw`."""
        assert self._process is not None
        self._process.freeze()

    def thaw(self) -> None:
        """Let the program run again."""
        assert self._process is not None
        self._process.thaw()

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """Stop, and remove the temporary folder."""
        self.stop()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()
