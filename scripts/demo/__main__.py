"""Everything from end to end on real parts: Apache Kafka, the daemon, concurrent producers, and pylance as reader.

Producers write data files with pylance and stage Appends through `committerd_client`. At the same time a Spark stream
appends its micro-batches, rows are upserted and deleted, and a compaction rewrites the fragments. The daemon commits
everything; in the end the table must hold every row exactly once.

With KAFKA_BOOTSTRAP_SERVERS set, the demo uses that Kafka instead of starting one. It leaves nothing behind, no
process, topic or file (but see --keep), also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asks the demo to end."""


class Interrupts:
    """SIGINT, SIGTERM and SIGHUP raise `Interrupted` in the main thread; further signals don't disturb the clean-up.

    Python drops an exception that is raised while an object is finalised, and a library that is being imported may
    swallow it. So the first signal raises `Interrupted` again every few seconds, until the demo ends.
    """

    def __init__(self, repeat_seconds: float = 5.0) -> None:
        self.number: int | None = None
        """The first signal that arrived."""
        self.ending = False
        self._repeat_seconds = repeat_seconds

    def listen(self) -> None:
        """Handle signals until the process ends, also SIGINT in a background job, which a shell starts with SIGINT
        ignored.
        """
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGALRM, self._on_alarm)

    def ignore(self) -> None:
        """Ignore signals for good: while Python shuts down there are no handlers, and a signal would kill it."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    @contextlib.contextmanager
    def held_off_afterwards(self) -> Iterator[None]:
        """Once the block is left, in whatever way, no signal disturbs what follows."""
        try:
            yield
        finally:
            self.ending = True

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.ending or self.number is not None:
            return
        self.number = number
        signal.setitimer(signal.ITIMER_REAL, self._repeat_seconds, self._repeat_seconds)
        self._raise()

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        self._raise()

    def _raise(self) -> None:
        if not self.ending:
            raise Interrupted


def at_least(minimum: int) -> Callable[[str], int]:
    """Return a type for argparse: an integer of at least this value."""

    def number(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is less than {minimum}")
        return value

    return number


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--appends", type=at_least(1), default=1000, metavar="N", help="Appends of all producers together (1000)")
    option("--producers", type=at_least(1), default=8, metavar="N", help="producers, a process each (8)")
    option("--rows", type=at_least(1), default=100, metavar="N", help="rows in each Append (100)")
    option(
        "--store",
        choices=("local", "s3", "s3+ddb", "azure", "gcs"),
        default="local",
        help="where the table lies: a folder (local), a bucket of versitygw or of the S3 server that "
        "COMMITTERD_TEST_S3_ENDPOINT names (s3), the same with its versions in DynamoDB Local (s3+ddb), a container of "
        "Azurite (azure), a bucket of fake-gcs-server (gcs)",
    )
    option(
        "--appends-only",
        action="store_true",
        help="no Spark stream, no upserts and deletes and no compaction beside the appends",
    )
    option("--keep", action="store_true", help="keep the logs and a local table, and say where they are")
    chosen = parser.parse_args()
    if chosen.appends < chosen.producers:
        parser.error(f"--appends {chosen.appends} leaves some of the {chosen.producers} producers without work")
    return chosen


def main() -> int:
    """Return the exit code: 0; 1 if something did not work or a check failed; 128 plus the number of the signal."""
    chosen = arguments()
    interrupts = Interrupts()
    interrupts.listen()
    try:
        from scripts.demo.steps import (
            run,
        )  # imported here: loading takes half a second, in which Ctrl-C must end as quietly

        return run(chosen, interrupts.held_off_afterwards)
    except Interrupted:
        return _interrupted(interrupts)
    except BrokenPipeError:  # the reader of our output has gone, so there is nowhere to print a message
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # Python flushes it at exit
        return 1
    except Exception:
        if interrupts.number is not None:  # a library turned it into an error of its own
            return _interrupted(interrupts)
        raise
    finally:
        interrupts.ignore()


def _interrupted(interrupts: Interrupts) -> int:
    interrupts.ending = True
    assert interrupts.number is not None
    print(f"Ended by {signal.Signals(interrupts.number).name}; everything is stopped.", file=sys.stderr)
    return 128 + interrupts.number


if __name__ == "__main__":
    sys.exit(main())
