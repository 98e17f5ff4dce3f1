"""A process one of whose committers crashes, outside of the work on any record, while a file names its table.

`python -m tests.e2e.crashing_committer FILE run`: the file holds a part of the table's URI; while it is empty, nothing
crashes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from committerd.__main__ import main
from committerd.committer.current_head import CurrentHead
from committerd.committer.state import HeadMetrics

if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    show = HeadMetrics.show

    def crash(metrics: HeadMetrics, current: CurrentHead) -> None:
        named = file.read_text()
        if named and named in current.table.uri:
            raise KeyError("a bug")
        show(metrics, current)

    HeadMetrics.show = crash  # type: ignore[method-assign, assignment]
    main()
