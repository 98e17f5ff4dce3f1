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
from pathlib import Path

from committerd.__main__ import main
from committerd.committer import putting
from committerd.daemon import pylance_process
from committerd.daemon.pylance_process import PylanceProcess
from harness.stepping import around

STEPS = ("asks", "built", "read", "put", "created")
SIGNALS = {"kill": signal.SIGKILL, "sleep": signal.SIGSTOP}
FOREIGN = 1_000_000
_APPEND = f"""
import sys, lance, pyarrow as pa
lance.write_dataset(pa.table({{"id": [{FOREIGN}]}}), sys.argv[1], mode="append")
"""


class Steps:
    def __init__(self, path: Path) -> None:
        self._path = path

    def reach(self, step: str) -> None:
        what, _, at = self._path.read_text().partition(" ")
        wanted, _, uri = at.partition(" ")
        if wanted != step:
            return
        self._path.write_text("")
        if what in SIGNALS:
            os.kill(os.getpid(), SIGNALS[what])
            return
        subprocess.run([sys.executable, "-c", _APPEND, uri], check=True)


if __name__ == "__main__":
    steps = Steps(Path(sys.argv.pop(1)))
    ask = around(steps.reach, PylanceProcess._ask, before="asks", after="built")
    PylanceProcess._ask = ask  # type: ignore[method-assign, assignment]
    pylance_process._read = around(steps.reach, pylance_process._read, after="read")  # type: ignore[assignment]
    stepped = around(steps.reach, putting.put, before="put", after="created")  # type: ignore[attr-defined]
    vars(putting)["put"] = stepped
    main()
