"""One Append to a table of many fragments: how long the commit takes, without Kafka and without contention.

All sides begin with the same manifest, each on a table of its own, and commit the same files, in turn. Timed are

* pylance, warm: `LanceDataset.commit` on the dataset object of the previous commit;
* pylance, by URI: the same by the table's URI, which includes opening it;
* committerd: judge, build, put the manifest and write the transaction file, on the version that the process holds from
  the previous commit, as a running committer does; durable and not;
* the limit: the bytes of committerd's last manifest, written to a new file beside the table's (`open`, `write`,
  `rename`); durable with `fsync` of file and folder. No code of committerd runs there. The file stays, as versions do:
  a file system can reuse the pages of a file that was just removed, and in a virtual machine that returns unused memory
  to its host, others take milliseconds for each megabyte.

The first commit of each side is not counted. pylance counts the rows afterwards.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

from bench.bench import Bench, mode
from bench.committerd_side import InProcess
from bench.pool import enlarge_table, newest_manifest, require_count
from bench.results import Side
from bench.workers import Worker, results

NAME = "fragments"
WARM, BY_URI = "warm handle", "by URI"
_SYNC_ABOVE = 50_000
"""From this number of fragments on, everything is synced to disk before the next measurement; else one side waits for
the bytes of another.
"""


def run(bench: Bench) -> None:
    """Measure all sizes."""
    for size, times in bench.plan.fragments.items():
        with ExitStack() as stack:
            _Sides(bench, size, stack).measure(times)


def case(size: int, what: str) -> str:
    """The name of the case in the results."""
    return f"{size} fragments, {what}"


class _Sides:
    """Four tables with the same fragments, and a process for each."""

    def __init__(self, bench: Bench, size: int, stack: ExitStack) -> None:
        from bench.pylance_side import Alone

        self._bench, self._size = bench, size
        bench.tell(f"{NAME}: makes tables of {size} fragments")
        self._uris = [bench.new_table() for _ in range(4)]
        first = Path(self._uris[0])
        enlarge_table(bench.pool, first, size)
        for other in self._uris[1:]:
            _copy_version(first, Path(other))
        warm, by_uri, durable, fast = (stack.enter_context(Worker()) for _ in range(4))
        warm.begin_make(Alone, pool=bench.pool, uri=self._uris[0])
        by_uri.begin_make(Alone, pool=bench.pool, uri=self._uris[1])
        durable.begin_make(InProcess, pool=bench.pool, uri=self._uris[2], durable=True)
        fast.begin_make(InProcess, pool=bench.pool, uri=self._uris[3], durable=False)
        results([warm, by_uri, durable, fast])
        self._warm, self._by_uri, self._durable, self._fast = warm, by_uri, durable, fast

    def measure(self, times: int) -> None:
        """Measure one commit of each side in turn, this many times after the first."""
        results_, bench = self._bench.results, self._bench
        for number in range(times + 1):
            took: list[tuple[Side, str, float]] = [
                ("pylance", WARM, self._timed(self._warm, "warm", number)),
                ("pylance", BY_URI, self._timed(self._by_uri, "by_uri", number)),
                ("committerd", mode(True), self._timed(self._durable, "commit", number)),
                ("committerd", mode(False), self._timed(self._fast, "commit", number)),
                ("limit", mode(True), self._raw(durable=True)),
                ("limit", mode(False), self._raw(durable=False)),
            ]
            for side, what, seconds in took if number else ():
                results_.note(NAME, case(self._size, what), side, commit=(seconds, "s"))
        for uri in self._uris:
            require_count(uri, self._size + times + 1)
        manifest = newest_manifest(self._uris[3]).stat().st_size
        results_.note(NAME, case(self._size, mode(False)), "committerd", manifest=(manifest, "bytes"))
        told = (
            f"{one.side} {one.case.partition(', ')[2]} {one.median * 1000:.2f} ms"
            for one in results_.of(NAME)
            if one.metric == "commit" and one.case.startswith(f"{self._size} ")
        )
        bench.tell(f"{NAME}: {self._size}: {', '.join(told)}")

    def _timed(self, worker: Worker, method: str, number: int) -> float:
        self._settle()
        return float(worker.call(method, number=number))

    def _raw(self, *, durable: bool) -> float:
        """Write the bytes of the last manifest, with system calls only."""
        folder = Path(self._uris[3], "raw")
        folder.mkdir(exist_ok=True)
        body = newest_manifest(self._uris[3]).read_bytes()
        temporary, target = folder / "new", folder / str(len(os.listdir(folder)))
        self._settle()
        began = time.perf_counter()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        view = memoryview(body)
        while view:
            view = view[os.write(descriptor, view) :]
        if durable:
            os.fsync(descriptor)
        os.close(descriptor)
        os.rename(temporary, target)
        if durable:
            descriptor = os.open(folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        return time.perf_counter() - began

    def _settle(self) -> None:
        if self._size >= _SYNC_ABOVE:
            os.sync()


def _copy_version(source: Path, target: Path) -> None:
    for path in (target / "_versions").iterdir():
        path.unlink()
    for path in (source / "_versions").iterdir():
        (target / "_versions" / path.name).write_bytes(path.read_bytes())
