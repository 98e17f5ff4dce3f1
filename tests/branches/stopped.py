"""A command to which something happens at a step, once: `python -m tests.branches.stopped WHAT STEP URI promote ...`.

WHAT is `kill` (the process kills itself), or Python statements that are run with `uri` and `lance`. The steps: the
files of the version are about to be `written`, its manifest is about to be `put`, it was `created`.
"""

from __future__ import annotations

import os
import signal
import sys

from committerd.__main__ import main
from committerd.table import landing
from harness.stepping import around


class Step:
    def __init__(self, what: str, wanted: str, uri: str) -> None:
        self._what, self._wanted, self._uri = what, wanted, uri

    def reach(self, step: str) -> None:
        if step != self._wanted:
            return
        self._wanted = ""
        if self._what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        import lance
        import pyarrow as pa

        exec(self._what, {"lance": lance, "pa": pa, "uri": self._uri})


if __name__ == "__main__":
    step = Step(*(sys.argv.pop(1) for _ in range(3)))
    names = vars(landing)
    names["write_files"] = around(step.reach, names["write_files"], before="written")
    names["put"] = around(step.reach, names["put"], before="put", after="created")
    main()
