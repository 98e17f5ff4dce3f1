"""A long run of a scene beside a Kafka of its own, whose folder stays if something is wrong."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from harness.child import ChildProcess, Launch
from harness.kafka import KafkaBroker
from harness.preloaded import Preloaded

Tell = Callable[[str], None]
"""Takes a line about the progress."""


def long_run(name: str, run: Callable[[KafkaBroker, Path, Launch, Tell], Sequence[str]], *, good: str) -> int:
    """Call `run`, and print what it returns, which is what is wrong, or else `good`; returns the exit code."""
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix=f"committerd-{name}-"))
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        launch: Launch = stack.enter_context(Preloaded()) if sys.platform == "linux" else ChildProcess
        wrong = run(broker, folder, launch, tell)
    print("\n".join(wrong) or good)
    if wrong:
        print(f"logs and table: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0
