"""A committer that fails inside, as a file says: `python -m tests.e2e.failing_committer FILE run`.

The file names the error with which building a version fails, or validating (`bug@validate`), and perhaps a text: then
only transactions that have this text fail. Or it names a limit of the process, and what is left of it:
`RLIMIT_NOFILE 5`.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from committerd.__main__ import main
from committerd.lance.format.kind import Kind
from committerd.lance.operations.table import operation
from committerd_common.messages import Transaction

ERRORS: dict[str, Callable[[], Exception]] = {
    "bug": lambda: KeyError("a bug"),
    "memory": MemoryError,
    "threads": lambda: RuntimeError("can't start new thread"),
    "files": lambda: OSError(errno.EMFILE, "Too many open files"),
    "imports": lambda: ImportError("libarrow.so: cannot open shared object file"),
}
SAID_BYTES = 100
"""The length of the file, which is written in place: at a limit of files it can't be opened again."""


class Failing:
    """What the file says."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)

    def said(self) -> str:
        return os.pread(self._file, SAID_BYTES, 0).decode().strip()

    def at(self, stage: str, call: Callable[..., None], *, place: int) -> Callable[..., None]:
        """The function, which fails first if the file says so. `place`: of the transaction among its arguments."""

        def fail(*args: Any) -> None:
            where, _, text = self.said().partition(" ")
            kind, _, wanted = where.partition("@")
            transaction: Transaction = args[place]
            if kind in ERRORS and stage == (wanted or "build") and text.encode() in transaction.SerializeToString():
                raise ERRORS[kind]()
            call(*args)

        return fail

    def limit(self) -> None:
        """Keep the limit that the file names, as long as it does."""
        limited: tuple[int, tuple[int, int]] | None = None
        while True:
            time.sleep(0.05)
            name, _, left = self.said().partition(" ")
            if name.startswith("RLIMIT_") and limited is None:
                number = getattr(resource, name)
                limited = number, resource.getrlimit(number)
                resource.setrlimit(number, (int(left), limited[1][1]))
            elif not name and limited is not None:
                resource.setrlimit(*limited)
                limited = None


if __name__ == "__main__":
    failing = Failing(Path(sys.argv.pop(1)))
    for kind in Kind:
        one = operation(kind)
        object.__setattr__(one, "build", failing.at("build", one.build, place=1))
        object.__setattr__(one, "validate", failing.at("validate", one.validate, place=0))
    threading.Thread(target=failing.limit, daemon=True).start()
    main()
