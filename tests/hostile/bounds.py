"""What a record may cost: kinds that took memory or time without a bound, each against a real committer of its own."""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import numpy as np
from pyroaring import BitMap

from committerd.lance.format.manifest_file import decode, encode
from committerd_common.messages import COMMITTED, DataFragment, DeletionFile, Transaction
from committerd_common.own_properties import BLAKE2B_8, KEY_HASH
from committerd_common.paths import NamingScheme, deletion_key, manifest_key
from committerd_common.request import HEADER_BYTES_MAX
from harness.scene import Scene
from tests.conformance.facts import manifests
from tests.hostile.attack import SETTINGS, Seen, Watch, note, told
from tests.hostile.records import counted

_FILES = 1024
"""The files that a process may open by default in many places."""
_PROCESSOR_SECONDS_MAX = 30
"""The processor time that the records of one kind may take. The records behind them wait at least as long."""


def footprints(scene: Scene, seed: int) -> Seen:
    """Deletes that were staged before 150 upserts of 90,000 keys each."""
    rng = random.Random(seed)
    scene.table.create(3)
    there = _fragment(scene)
    _grow(scene, versions=150, keys=90_000, rng=rng)
    deletes = [_delete(scene, there, row, rng).SerializeToString() for row in range(2)]
    with _attacked(scene) as seen:
        _wait_behind(scene, scene.topics.stage(*deletes), seen, wanted=COMMITTED)
    return seen


def huge_headers(scene: Scene, seed: int) -> Seen:
    """Headers of 900 KB each, percent-encoded, with a character that makes each take four bytes in memory."""
    rng = random.Random(seed)
    scene.table.create(3)
    value = scene.table.append().SerializeToString()
    offsets: list[int] = []
    with _attacked(scene) as seen:
        for number in range(300):
            name = "dataset" if number % 4 else rng.choice(sorted(HEADER_BYTES_MAX))
            text = (
                f"/{number}/\N{GRINNING FACE}".encode() + rng.choice((b"%41", b"%E9", b"a%", b"%41\xc3\xa9")) * 180_000
            )
            offsets += scene.topics.stage(value, headers=[(name, text)])
        _wait_behind(scene, offsets, seen)
    return seen


def idle_listeners(scene: Scene, seed: int) -> Seen:
    """More connections to the metrics than the process may have files; none of them asks for anything."""
    scene.table.create(3)
    with _files_allowed(2 * _FILES), _attacked(scene, files=_FILES) as seen, ExitStack() as connections:
        address = urlsplit(seen.url)
        for number in range(_FILES + 100):
            one = connections.enter_context(socket.create_connection((address.hostname, address.port), timeout=120))
            one.sendall(b"GET /metrics HTTP/1.1\r\n"[: number % 20])
        for _ in range(3):
            _wait_behind(scene, [], seen)
    return seen


def large_configs(scene: Scene, seed: int) -> Seen:
    """UpdateConfigs of more entries than a table may have; some alone, and some only together with others."""
    rng = random.Random(seed)
    scene.table.create(3)
    offsets: list[int] = []
    with _attacked(scene, seconds_max=15) as seen:
        for number in range(60):
            made = Transaction(uuid=_uuid(rng), read_version=1)
            updates = made.update_config.config_updates
            for key in range(20_001 if number % 3 else 9_000):
                updates.update_entries.add(key=f"{number} {key}", value="")
            offsets += scene.topics.stage(made.SerializeToString())
        _wait_behind(scene, offsets, seen)
    return seen


def long_descriptors(scene: Scene, seed: int) -> Seen:
    """Appends of data files that say of themselves, in 8 MB, that they have millions of columns, or nothing at all."""
    scene.table.create(3)
    folder = Path(scene.table.uri, "data")
    bodies = (b"\x0a\x00" * 4_000_000, b"\x0a\x01" * 250_000 + b"\x18\x01" * 3_700_000, b"\x52\x02\x0a\x00" * 2_000_000)
    for number, body in enumerate(bodies):
        descriptor = counted(1, counted(1, body) if number else body)
        end = struct.pack("<QQ", 0, len(descriptor)) + struct.pack(
            "<QQQIIHH4s", 0, 0, len(descriptor), 1, 1, 2, 1, b"LANC"
        )
        (folder / f"long-{number}.lance").write_bytes(descriptor + end)
    appends = [scene.table.append() for _ in range(4)]
    for number, append in enumerate(appends):
        for copy in range(4):
            name = f"long-{number}-{copy}.lance"
            os.link(folder / f"long-{copy % len(bodies)}.lance", folder / name)
            fragment = append.append.fragments.add()
            fragment.CopyFrom(append.append.fragments[0])
            fragment.files[0].path = name
            fragment.files[0].file_size_bytes = (folder / name).stat().st_size
    with _attacked(scene) as seen:
        _wait_behind(scene, scene.topics.stage(*(one.SerializeToString() for one in appends)), seen)
    return seen


KINDS: tuple[Callable[[Scene, int], Seen], ...] = (
    footprints,
    huge_headers,
    idle_listeners,
    large_configs,
    long_descriptors,
)


@contextmanager
def _attacked(scene: Scene, *, files: int | None = None, seconds_max: float = _PROCESSOR_SECONDS_MAX) -> Iterator[Seen]:
    """Run a committer that may open so many files and take so many seconds of processor time; note what was seen."""
    seen, began = Seen(), time.monotonic()
    with _files_allowed(files):
        daemon = scene.started(**SETTINGS)
    seen.url = daemon.url()
    before = daemon.processor_seconds()
    with Watch(daemon) as watch:
        yield seen
    if not daemon.running():
        seen.wrong.append(f"the committer has ended with {daemon.code}")
    elif (took := daemon.processor_seconds() - before) > seconds_max:
        seen.wrong.append(f"the committer took {took:.0f} s of processor time")
    note(watch, seen)
    seen.seconds = time.monotonic() - began


@contextmanager
def _files_allowed(count: int | None) -> Iterator[None]:
    """Let this process, and those that it starts meanwhile, open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _wait_behind(scene: Scene, offsets: list[int], seen: Seen, *, wanted: int | None = None) -> None:
    """Stage a good record behind those at these offsets, and wait until all are answered.

    `wanted`: the status that the others must have.
    """
    good = scene.table.append()
    answers = scene.topics.wait_answers([*offsets, *scene.stage(good)], timeout=180)
    seen.good.append(good.uuid)
    for answer in answers[:-1]:
        seen.hostile[told(answer)] += 1
        if wanted is not None and answer.status != wanted:
            seen.wrong.append(f"a record is answered {told(answer)}: {answer.message}")
    if answers[-1].status != COMMITTED:
        seen.wrong.append(f"a good record is answered {told(answers[-1])}: {answers[-1].message}")


def _fragment(scene: Scene) -> DataFragment:
    (there,) = decode(manifests(Path(scene.table.uri))[1].read_bytes()).manifest.fragments
    return there


def _grow(scene: Scene, *, versions: int, keys: int, rng: random.Random) -> None:
    """Add versions that are upserts of so many keys each, and change nothing."""
    root = Path(scene.table.uri)
    version, path = max(manifests(root).items())
    manifest = decode(path.read_bytes()).manifest
    for number in range(version + 1, version + 1 + versions):
        manifest.version = number
        upsert = Transaction(uuid=_uuid(rng), read_version=number - 1)
        upsert.transaction_properties[KEY_HASH] = BLAKE2B_8
        upsert.update.inserted_rows.field_ids.append(0)
        upsert.update.inserted_rows.exact.key_hashes.extend(np.frombuffer(rng.randbytes(8 * keys), np.uint64).tolist())
        (root / manifest_key(number, NamingScheme.V2)).write_bytes(encode(manifest, [], upsert))


def _delete(scene: Scene, there: DataFragment, row: int, rng: random.Random) -> Transaction:
    """A Delete of one row, read at version 1."""
    changed = DataFragment()
    changed.CopyFrom(there)
    changed.deletion_file.CopyFrom(
        DeletionFile(file_type=DeletionFile.BITMAP, read_version=1, id=rng.getrandbits(63), num_deleted_rows=1)
    )
    path = Path(scene.table.uri, deletion_key(changed.id, changed.deletion_file, staged=True))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(BitMap([row]).serialize())
    made = Transaction(uuid=_uuid(rng), read_version=1)
    made.delete.updated_fragments.append(changed)
    made.delete.predicate = f"row {row}"
    return made


def _uuid(rng: random.Random) -> str:
    return str(UUID(int=rng.getrandbits(128), version=4))
