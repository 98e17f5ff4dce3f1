"""Stage hostile records between good ones, and watch the committer."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

from committerd.lance.format.manifest_file import decode
from committerd.table.refusals import INTERNAL_ERROR
from committerd_common.messages import COMMITTED, DataFragment, Outcome, Status, Transaction
from harness.daemon import Daemon
from harness.scene import STAYS, Scene
from tests.conformance.facts import manifests
from tests.hostile import packed
from tests.hostile.forged import APPENDER, GOOD, forged, producers_text, signed
from tests.hostile.records import Hostile, heavy, mutated, seeds
from tests.oracle import samples

RSS_BYTES_MAX = 512 * 1024 * 1024
HEAVY_RSS_BYTES_MAX = 768 * 1024 * 1024
"""The most memory under records that take as much as they can. The chart gives a committer 1 GiB."""
_LOOK_SECONDS = 0.25
_BATCH = 500
_LOG = "committerd-1.log"
SAFE = "append,create_index,update_config,reserve_fragments"
"""Operations that change no existing row and no column: good records stay good, whatever of them is committed."""
_READ_BYTES_MAX = 8 * 1024 * 1024 * 1024
"""The address space for pylance, of which its threads reserve some. No good record needs more than a few MiB."""
_READ = """
import json, resource, sys, lance
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
ids = []
for fragment in lance.dataset(sys.argv[1]).get_fragments():
    try:
        ids += fragment.to_table(columns=["id"])["id"].to_pylist()
    except Exception:
        pass
print(json.dumps(ids))
"""
"""A record may lie about the rows of its own files, which committers never read: then its fragment can't be read."""
SETTINGS = STAYS | {"COMMIT__VERIFY_FILES": "always", "KAFKA__MAX_POLL_INTERVAL_MS": "300000"}


@dataclass(slots=True)
class Seen:
    """The results of an attack."""

    wrong: list[str] = field(default_factory=list)
    """The violated requirements, a sentence each."""
    failed: list[str] = field(default_factory=list)
    """Records on which the committer failed in an unforeseen way, and went on."""
    hostile: Counter[str] = field(default_factory=Counter)
    """Outcomes of hostile records, by status and reason."""
    good: list[str] = field(default_factory=list)
    """Uuids of the good records."""
    may_refuse_good: bool = False
    seconds: float = 0.0
    rss_bytes: int = 0
    url: str = ""
    """Where the committer serves its metrics."""


class Watch:
    """Checks a committer again and again: its memory, and whether it is ready."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.rss_bytes = 0
        self.unready: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                ready, reason = self._once_more_if_reset()
                with suppress(ConnectionResetError):
                    self.rss_bytes = max(self.rss_bytes, int(self._daemon.metric("process_resident_memory_bytes")))
            except OSError as error:
                ready, reason = False, f"no answer: {error}"
            if not ready:
                self.unready.append(reason)

    def _once_more_if_reset(self) -> tuple[bool, str]:
        """Ask again, as a kubelet does: while hundreds of connections are opened at once, one may be closed unread."""
        try:
            return self._daemon.ready()
        except ConnectionResetError:
            return self._daemon.ready()


def attack(scene: Scene, count: int, seed: int, *, folder: Path) -> Seen:
    """Stage all seeds, then this many mutated records; every tenth record is a good one. Makes the table first."""
    rng = random.Random(seed)
    seen = Seen()
    began = time.monotonic()
    appends, donors, there = _prepare(scene, count, seed, folder)
    daemon = scene.started(**SETTINGS)
    with Watch(daemon) as watch:
        _wave(scene, seeds(appends.copy, rng, read_version=1, there=there), appends, seen, every=1)
        _packed(scene, appends, seen)
    note(watch, seen)
    daemon.stop()
    daemon = scene.started(**SETTINGS, COMMIT__ALLOWED_OPERATIONS=SAFE)
    with Watch(daemon) as watch:
        records = mutated(appends.copy, rng, donors, read_version=1, there=there)
        _wave(scene, islice(records, count), appends, seen, every=10)
    note(watch, seen)
    _read(scene, seen)
    _operate(scene, seen)
    seen.seconds = time.monotonic() - began
    return seen


def attack_all_operations(scene: Scene, count: int, seed: int, *, folder: Path) -> Seen:
    """Stage mutated records of every operation.

    Those that are committed may change columns and rows, so good records may be refused. Every record must get an
    outcome, and the committer must go on.
    """
    rng = random.Random(seed)
    seen = Seen(may_refuse_good=True)
    began = time.monotonic()
    appends, donors, there = _prepare(scene, count, seed, folder)
    with Watch(scene.started(**SETTINGS)) as watch:
        records = mutated(appends.copy, rng, donors, read_version=1, there=there)
        _wave(scene, islice(records, count), appends, seen, every=10)
    note(watch, seen)
    seen.seconds = time.monotonic() - began
    return seen


def attack_with_heavy_records(scene: Scene, count: int, seed: int, *, folder: Path) -> Seen:
    """Stage so many records that take as much memory as they can; every fifth record is a good one."""
    rng = random.Random(seed)
    seen = Seen(may_refuse_good=True)
    began = time.monotonic()
    appends, _, _ = _prepare(scene, count, seed, folder)
    with Watch(scene.started(**SETTINGS)) as watch:
        _wave(scene, islice(heavy(rng), count), appends, seen, every=5, batch=25)
    note(watch, seen, rss_bytes_max=HEAVY_RSS_BYTES_MAX)
    seen.seconds = time.monotonic() - began
    return seen


def attack_with_forged_records(scene: Scene, count: int, seed: int, *, folder: Path) -> Seen:
    """Stage so many records that nobody has signed, or whose producer may not stage them; every tenth is a good one."""
    rng = random.Random(seed)
    seen = Seen()
    began = time.monotonic()
    appends, donors, there = _prepare(scene, count, seed, folder)
    file = folder / "producers.toml"
    file.write_text(producers_text())
    with Watch(scene.started(**SETTINGS, COMMIT__PRODUCERS_FILE=str(file))) as watch:
        mutations = mutated(appends.copy, rng, donors, read_version=1, there=there)
        records = islice(forged(scene.topics.staged, appends.copy, mutations, rng), count)
        _wave(scene, records, appends, seen, every=10, is_signed=True)
    note(watch, seen)
    told_keys = [one.name for one in (GOOD, APPENDER) if one.keys[0] in (scene.folder / _LOG).read_text()]
    seen.wrong += [f"the log has the key of {name}" for name in told_keys]
    seen.seconds = time.monotonic() - began
    return seen


class _Appends:
    """Appends whose files exist. All are written before the attack, because pylance may not survive the table."""

    def __init__(self, scene: Scene, count: int) -> None:
        self._ready = [one for _ in range(-(-count // 100)) for one in scene.table.appends(100)]
        self._pool = self._ready[:100]
        del self._ready[:100]
        self._copied = 0

    def take(self) -> Transaction:
        """An Append that nobody else has."""
        return self._ready.pop()

    def copy(self) -> Transaction:
        """An Append whose files other records name too, with a uuid of its own."""
        made = Transaction()
        made.CopyFrom(self._pool[self._copied % len(self._pool)])
        self._copied += 1
        made.uuid = str(UUID(int=self._copied, version=4))
        return made


def _prepare(scene: Scene, count: int, seed: int, folder: Path) -> tuple[_Appends, list[Transaction], DataFragment]:
    """Make a table, files for the good records, and transactions of all kinds; also returns the table's fragment."""
    scene.table.create(3, enable_stable_row_ids=bool(seed % 2))
    donors = [Transaction.FromString(one.staged) for one in samples.unpack(folder)]
    (there,) = decode(manifests(Path(scene.table.uri))[1].read_bytes()).manifest.fragments
    return _Appends(scene, 500 + count // 10 + count // _BATCH), donors, there


def _wave(
    scene: Scene,
    records: Iterator[Hostile],
    appends: _Appends,
    seen: Seen,
    *,
    every: int,
    batch: int = _BATCH,
    is_signed: bool = False,
) -> None:
    """`batch`: hostile records in flight at the same time. `is_signed`: whether the good records are signed."""
    while some := list(islice(records, batch)):
        staged: list[tuple[Hostile | Transaction, int]] = []
        for number, hostile in enumerate(some, start=1):
            for key, body in hostile.files.items():
                path = Path(scene.table.uri, key)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(body)
            offsets = scene.topics.stage(hostile.value, key=hostile.key, headers=hostile.headers)
            staged.append((hostile, offsets[0]))
            if number % every == 0 or number == len(some):
                good = appends.take()
                value = good.SerializeToString()
                headers = signed(scene.topics.staged, GOOD, value) if is_signed else ()
                staged.append((good, scene.stage(value, headers=headers)[0]))
        _take_answers(scene, staged, seen)


def _packed(scene: Scene, appends: _Appends, seen: Seen) -> None:
    """Stage compressed batches: good records with a bad one, and one that the broker must not let grow."""
    for codec in packed.CODECS:
        records: list[Hostile | Transaction] = [
            appends.take(),
            Hostile(name=f"900 KB packed with {codec}", value=bytes(900_000)),
            appends.take(),
        ]
        values = [one.SerializeToString() if isinstance(one, Transaction) else one.value or b"" for one in records]
        offsets = packed.stage(scene.topics.servers, scene.topics.staged, codec, values)
        if offsets is None:
            seen.wrong.append(f"Kafka refuses good records that are packed with {codec}")
            continue
        _take_answers(scene, list(zip(records, offsets, strict=True)), seen)
        if packed.stage(scene.topics.servers, scene.topics.staged, codec, [bytes(900_000)] * 100) is not None:
            seen.wrong.append(f"Kafka takes 90 MB that are packed with {codec}, though the topic's limit is below that")


def _take_answers(scene: Scene, staged: Sequence[tuple[Hostile | Transaction, int]], seen: Seen) -> None:
    answers = scene.topics.wait_answers([offset for _, offset in staged], timeout=180)
    for (record, _), answer in zip(staged, answers, strict=True):
        if isinstance(record, Transaction):
            seen.good.append(record.uuid)
            if answer.status != COMMITTED and not seen.may_refuse_good:
                seen.wrong.append(f"a good record is answered {told(answer)}: {answer.message}")
            continue
        seen.hostile[told(answer)] += 1
        if record.is_seed and answer.status == COMMITTED:
            seen.wrong.append(f"{record.name} is committed")
        if answer.reason == INTERNAL_ERROR:
            seen.failed.append(f"{record.name}: {answer.message}")


def note(watch: Watch, seen: Seen, *, rss_bytes_max: int = RSS_BYTES_MAX) -> None:
    seen.rss_bytes = max(seen.rss_bytes, watch.rss_bytes)
    if watch.unready:
        seen.wrong.append(f"/readyz said {len(watch.unready)} times that it is not ready: {watch.unready[0]}")
    if watch.rss_bytes > rss_bytes_max:
        seen.wrong.append(f"the committer took {watch.rss_bytes / 2**20:.0f} MiB")


def _read(scene: Scene, seen: Seen) -> None:
    """Open the table with pylance, in a process with bounded memory, and read every row of the good records."""
    command = [sys.executable, "-c", _READ, scene.table.uri, str(_READ_BYTES_MAX)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        seen.wrong.append(f"pylance can't read the table ({done.returncode}): {done.stderr[-500:]}")
        return
    rows = set(json.loads(done.stdout.splitlines()[-1]))
    wanted = {i for uuid in seen.good for i in scene.table.brought[uuid]}
    if missing := wanted - rows:
        seen.wrong.append(f"{len(missing)} rows of good records are not in the table")


def _operate(scene: Scene, seen: Seen) -> None:
    """Check that the operators' commands work on the table."""
    try:
        scene.command("audit", "--json")
    except AssertionError as error:
        findings = set(re.findall(r'"code": "([a-z_]+)"', str(error)))
        # Mutated records name each other's files, so the audit rightly finds such files twice.
        if findings != {"data_misplaced"}:
            seen.wrong.append(f"committerd audit: {sorted(findings)} {str(error)[:1500]}")
    for words, good in (
        (("status", "--json"), True),
        (("position", "show", "--json"), True),
        (("dead", "list", "--limit", "100000", "--json"), True),
        (
            ("dead", "replay", "--since", "1d", "--json"),
            False,
        ),  # most records would be refused again, and the command says so
    ):
        try:
            printed = scene.command(*words, good=good)
            json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
        except (AssertionError, ValueError) as error:
            seen.wrong.append(f"committerd {' '.join(words)}: {str(error)[:1500]}")


def told(answer: Outcome) -> str:
    return f"{Status.Name(answer.status)} {answer.reason}".strip()
