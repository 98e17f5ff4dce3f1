"""A committer with `commit.unknown = pylance` to which something happens at a step, as a file says, once.

`python -m tests.e2e.stopped_committer FILE run`. The file holds `kill STEP`, `sleep STEP` or `append STEP URI`: the
process kills itself, or sleeps until it is woken, or another writer appends the row 1,000,000 to the table. The steps:
it `asks` pylance, pylance has `built`, the manifest was `read`, the version is `put`, it was `created`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from committerd.__main__ import main
from committerd.committer import putting
from committerd.daemon import pylance_process
from committerd.daemon.pylance_process import PylanceProcess

STEPS = ("asks", "built", "read", "put", "created")
SIGNALS = {"kill": signal.SIGKILL, "sleep": signal.SIGSTOP}
FOREIGN = 1_000_000
_APPEND = f"""
import sys, lance, pyarrow as pa
lance.write_dataset(pa.table({{"id": [{FOREIGN}]}}), sys.argv[1], mode="append")
"""

P = ParamSpec("P")
T = TypeVar("T")


class Steps:
    def __init__(self, path: Path) -> None:
        self._path = path

    def reach(self, step: str) -> None:
        what, _, at = self._path.read_text().partition(" ")
        wanted, _, uri = at.partition(" ")
        if not step or wanted != step:
            return
        self._path.write_text("")
        if what in SIGNALS:
            os.kill(os.getpid(), SIGNALS[what])
            return
        subprocess.run([sys.executable, "-c", _APPEND, uri], check=True)

    def around(
        self, call: Callable[P, Awaitable[T]], *, before: str = "", after: str = ""
    ) -> Callable[P, Awaitable[T]]:
        async def stepped(*args: P.args, **options: P.kwargs) -> T:
            self.reach(before)
            result = await call(*args, **options)
            self.reach(after)
            return result

        return stepped


if __name__ == "__main__":
    steps = Steps(Path(sys.argv.pop(1)))
    ask = steps.around(PylanceProcess._ask, before="asks", after="built")
    PylanceProcess._ask = ask  # type: ignore[method-assign, assignment]
    pylance_process._read = steps.around(pylance_process._read, after="read")  # type: ignore[assignment]
    stepped = steps.around(putting.put, before="put", after="created")  # type: ignore[attr-defined]
    vars(putting)["put"] = stepped
    main()
