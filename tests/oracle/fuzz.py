"""Damaged transactions and damaged tables, and what they may cause.

A staged record must never stop the queue: it is committed or refused, whatever its bytes are, and a version that was
committed is one that the next transaction can be built on. A damaged table stops its queue, with an error that says so.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import lance

from committerd.errors import CorruptTable, RequestError, Unavailable, UnsupportedTable
from committerd.lance.format.manifest_file import ManifestFile, decode, encode
from committerd.lance.format.support import require_supported
from committerd.lance.operations.permissions import ANYTHING
from committerd.lance.transactions.transaction import footprint_of_theirs
from committerd.lance.versions.invariants import require_sound_table
from committerd.queue.dedupe import Refused
from committerd.stores.local import LocalStore
from committerd.stores.port import Created, ObjectStore
from committerd.table.case import PrepareOptions, Sources
from committerd.table.prepare import Prepared, prepare
from committerd.table.versions import Table
from committerd.table.writing import put, write_files
from committerd_common.messages import BasePath, DataFragment, IndexSection, Manifest, Message, Transaction
from committerd_common.request import decode_envelope, decode_transaction
from tests.conformance.facts import manifests
from tests.hostile import records as hostile
from tests.oracle import bounds, mutations, native
from tests.oracle.samples import Sample

SECONDS_MAX = 10.0
"""The limit of processor time for one transaction of a few kilobytes, which normally takes a few milliseconds."""
PER_SEED = 60

_BEYOND_PYTHON = ("Unsupported operation: ", "RewrittenIndex.__init__()")
"""Operations that pylance reads, but has no Python class for."""

_ORDINARY: dict[str, Any] = {
    "append": Transaction.Append(),
    "delete": Transaction.Delete(predicate="false"),
    "update": Transaction.Update(),
    "create_index": Transaction.CreateIndex(),
    "update_config": Transaction.UpdateConfig(),
    "reserve_fragments": Transaction.ReserveFragments(num_fragments=1),
    "update_bases": Transaction.UpdateBases(new_bases=[BasePath(name="after", path="/after")]),
}

OPTIONS = PrepareOptions(allowed=ANYTHING)
VERIFYING = PrepareOptions(allowed=ANYTHING, verify_files=True)


class DamageError(AssertionError):
    """Damage had a forbidden effect."""


@dataclass(slots=True)
class Report:
    """The results of the damage, by code."""

    codes: Counter[str] = field(default_factory=Counter)


async def damage_staged(seed: int, samples: Sequence[Sample], folder: Path) -> Report:
    """Judge and build damaged transactions. Raises `DamageError`."""
    rng = random.Random(seed)
    sample = samples[seed % len(samples)]
    donors = tuple(mutations.parts(Transaction.FromString(rng.choice(samples).staged)))
    root = native.link_tree(sample.root, folder / "table")
    if rng.random() < 0.2:
        _damage_deletion_files(root, rng)
    table = Table(open_store(str(root)))
    report = Report()
    for number in range(PER_SEED):
        body = _damaged(sample.staged, rng, donors)
        options = rng.choice((OPTIONS, VERIFYING))
        started = time.process_time()
        try:
            prepared = await _judge_and_build(table, body, options)
            if isinstance(prepared, Prepared):
                _require_usable(prepared)
                if rng.random() < 0.2:
                    await _require_goes_on(root, prepared, folder / f"after-{number}")
        except Exception as error:
            where = _where("staged", seed, number, sample)
            raise DamageError(f"{where}: {type(error).__name__}: {error}\n{_told(body)}") from error
        if time.process_time() - started > SECONDS_MAX:
            raise DamageError(f"{_where('staged', seed, number, sample)} takes too long\n{_told(body)}")
        report.codes[_code(prepared)] += 1
    return report


async def numbers_at_bounds(sample: Sample, folder: Path, *, part: int, parts: int) -> Report:
    """Judge and build a transaction with each number at a bound of its type: every `parts`-th case. Raises
    `DamageError`.
    """
    root = native.link_tree(sample.root, folder / "table")
    table = Table(open_store(str(root)))
    report = Report()
    for number, case in enumerate(bounds.at_bounds(sample.staged)):
        if number % parts != part:
            continue
        try:
            answer = await _judge_and_build(table, case.body, OPTIONS)
            if isinstance(answer, Prepared):
                _require_usable(answer)
                await _require_goes_on(root, answer, folder / f"after-{number}")
        except Exception as error:
            raise DamageError(f"{sample.name}, {case.name}: {type(error).__name__}: {error}") from error
        report.codes[_code(answer)] += 1
    return report


async def damage_table(seed: int, samples: Sequence[Sample], folder: Path) -> Report:
    """Judge and build transactions on tables of which one manifest is damaged. Raises `DamageError`."""
    rng = random.Random(seed)
    report = Report()
    for number in range(PER_SEED // 4):
        sample = rng.choice(samples)
        root = native.link_tree(sample.root, folder / str(number))
        if not manifests(root):
            continue
        versions = manifests(root)
        path = rng.choice(list(versions.values()))
        body = _damaged_manifest(path.read_bytes(), rng)
        path.unlink()
        path.write_bytes(body)
        started = time.process_time()
        try:
            code = _code(await _judge_and_build(Table(open_store(str(root))), sample.staged, OPTIONS))
        except (CorruptTable, UnsupportedTable) as error:
            if path != versions[max(versions)]:
                where = _where("tables", seed, number, sample)
                raise DamageError(f"{where}: the old version {path.name} stops all: {error}") from error
            code = error.code
        except Exception as error:
            where = _where("tables", seed, number, sample)
            raise DamageError(f"{where}, {path.name}: {type(error).__name__}: {error}") from error
        if time.process_time() - started > SECONDS_MAX:
            raise DamageError(f"{_where('tables', seed, number, sample)}, {path.name} takes too long")
        report.codes[code] += 1
    return report


async def hurt_staged(seed: int, samples: Sequence[Sample], folder: Path) -> Report:
    """Judge and build records of the kinds that once did harm. Raises `DamageError`."""
    rng = random.Random(seed)
    sample = samples[seed % len(samples)]
    donors = [Transaction.FromString(one.staged) for one in samples]
    root = native.link_tree(sample.root, folder / "table")
    table, report = Table(open_store(str(root))), Report()
    append = next(one for one in donors if one.WhichOneof("operation") == "append")

    def good() -> Transaction:
        made = Transaction()
        made.CopyFrom(append)
        return made

    version = Transaction.FromString(sample.staged).read_version
    read = await table.readable(version)
    there = next(iter(read.fragments), DataFragment()) if read is not None else DataFragment()
    known = hostile.seeds(good, rng, read_version=version, there=there)
    others = islice(hostile.mutated(good, rng, donors, read_version=version, there=there), PER_SEED)
    for record in (*known, *others):
        for key, body in record.files.items():
            (root / key).parent.mkdir(exist_ok=True)
            (root / key).write_bytes(body)
        started = time.process_time()
        try:
            answer = await _decode_and_build(table, record, hostile_only=record.is_seed)
            if isinstance(answer, Prepared):
                _require_usable(answer)
        except Exception as error:
            raise DamageError(f"{hostile.as_json(record)}, seed {seed}: {type(error).__name__}: {error}") from error
        if time.process_time() - started > SECONDS_MAX:
            raise DamageError(f"{hostile.as_json(record)}, seed {seed} takes too long")
        report.codes[_code(answer)] += 1
    return report


async def hostile_kinds(seed: int, samples: Sequence[Sample], folder: Path) -> Report:
    """Judge and build transactions that nest, name strange files, or have few bytes that stand for very much.

    Raises `DamageError`.
    """
    rng = random.Random(seed)
    sample = rng.choice([one for one in samples if manifests(one.root)])
    appends = [one for one in samples if Transaction.FromString(one.staged).HasField("append")]
    root = native.link_tree(sample.root, folder / "table")
    table, report = Table(open_store(str(root))), Report()
    version = Transaction.FromString(sample.staged).read_version
    for number in range(PER_SEED):
        append = Transaction.FromString(rng.choice(appends).staged)
        kind, transaction, headers = _hostile_kind(append, rng, version)
        record = hostile.Hostile(name=f"{kind} {number}", value=transaction.SerializeToString(), headers=headers)
        started = time.process_time()
        try:
            answer = await _decode_and_build(table, record, hostile_only=rng.random() < 0.5)
            if isinstance(answer, Prepared):
                _require_usable(answer)
                if rng.random() < 0.3:
                    await _require_goes_on(root, answer, folder / f"after-{number}")
        except Exception as error:
            raise DamageError(f"{hostile.as_json(record)}, seed {seed}: {type(error).__name__}: {error}") from error
        if time.process_time() - started > SECONDS_MAX:
            raise DamageError(f"{hostile.as_json(record)}, seed {seed} takes too long")
        report.codes[_code(answer)] += 1
    return report


def _hostile_kind(
    append: Transaction, rng: random.Random, version: int
) -> tuple[str, Transaction, list[tuple[str, bytes]]]:
    """The name of the damage, the transaction, and its headers."""
    made = Transaction(uuid=str(uuid.UUID(int=rng.getrandbits(128), version=4)), read_version=version)
    fragments = append.append.fragments
    kind = rng.choice(("schema", "project", "json", "index", "row ids", "row versions", "path", "base"))
    headers: list[tuple[str, bytes]] = []
    match kind:
        case "schema":
            made.overwrite.schema.extend(mutations.nested_schema(rng))
            made.overwrite.fragments.extend(fragments if rng.random() < 0.5 else ())
        case "project":
            made.project.schema.extend(mutations.nested_schema(rng))
        case "json":
            made.append.CopyFrom(append.append)
            headers = [("create-only", b"true"), ("create-options", mutations.nested_json(rng))]
        case "index":
            made.create_index.new_indices.append(mutations.hostile_index(rng))
        case "base":
            made.update_bases.new_bases.add(id=rng.choice((0, 1, 2**31)), path=mutations.special_path(rng))
        case _:
            made.append.CopyFrom(append.append)
            fragment = made.append.fragments[0]
            fragment.physical_rows = rng.choice((fragment.physical_rows, 3, 2**20, 2**32 - 1))
            if kind == "row ids":
                fragment.inline_row_ids = mutations.hostile_sequence(rng)
            elif kind == "row versions":
                fragment.inline_created_at_versions = mutations.hostile_sequence(rng)
            else:
                fragment.files[0].path = mutations.special_path(rng)
    return kind, made, headers


async def _decode_and_build(
    table: Table, record: hostile.Hostile, *, hostile_only: bool
) -> Prepared | Refused | RequestError | Unavailable:
    try:
        decode_envelope(record.headers)
    except RequestError as error:
        return error
    return await _judge_and_build(table, record.value or b"", VERIFYING if hostile_only else OPTIONS)


def _where(kind: str, seed: int, number: int, sample: Sample) -> str:
    return f"number {number} of `make oracle KIND={kind} SEEDS={seed}` ({sample.name})"


def open_store(uri: str) -> ObjectStore:
    return LocalStore(Path(uri), durable=False)


async def _judge_and_build(
    table: Table, body: bytes, options: PrepareOptions
) -> Prepared | Refused | RequestError | Unavailable:
    try:
        transaction = decode_transaction(body, bytes_max=2**24)
        return await prepare(
            table, await table.latest(), transaction, options=options, sources=_sources(), open_store=open_store
        )
    except (RequestError, Unavailable) as error:
        return error


def _code(answer: Prepared | Refused | RequestError | Unavailable) -> str:
    if isinstance(answer, Prepared):
        return "committed"
    return answer.reason if isinstance(answer, Refused) else answer.code


async def _require_goes_on(root: Path, prepared: Prepared, target: Path) -> None:
    """Check that ordinary transactions can be judged and built on the table."""
    after = Table(open_store(str(native.link_tree(root, target))))
    await write_files(after, prepared)
    assert isinstance(await put(after, prepared), Created)
    _require_opens(target)
    before = prepared.version - 1 if prepared.before is not None else prepared.version
    for read_version in {before, prepared.version}:
        for name, operation in _ORDINARY.items():
            transaction = Transaction(read_version=read_version, uuid=str(uuid.uuid4()), **{name: operation})
            reloaded = Table(after.store)
            answer = await _judge_and_build(reloaded, transaction.SerializeToString(), OPTIONS)
            if not isinstance(answer, (Prepared, Refused)):
                raise DamageError(f"{name} on what was committed: {answer}") from answer


def _require_opens(root: Path) -> None:
    """Check that pylance opens the table; otherwise nobody could repair it."""
    try:
        dataset = lance.dataset(str(root))
        dataset.schema  # noqa: B018  # it is decoded here
        dataset.get_fragments()
        dataset.read_transaction(dataset.version)
    except BaseException as error:  # pylance's panics are not derived from Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        if any(said in str(error) for said in _BEYOND_PYTHON):
            return
        raise DamageError(f"pylance can't open what was committed: {error}") from error


def _require_usable(prepared: Prepared) -> None:
    """Check that the version to be put can be read back and built on."""
    body = bytes(prepared.body)
    file = decode(body)
    assert file.transaction is not None
    assert (file.fragments, file.index_section) == (prepared.file.fragments, prepared.file.index_section)
    # The joined parts equal what protobuf writes for the whole.
    assert body == encode(file.manifest, file.indices, file.transaction)
    require_supported(file)
    require_sound_table(file)
    assert file.transaction == prepared.transaction
    footprint_of_theirs(prepared.transaction, before=prepared.before, after=file.outline, indices=file.indices)


def _sources() -> Sources:
    return Sources(wall_clock=lambda: datetime.now(UTC), random=random.Random(0), new_uuid=uuid.uuid4)


def _damaged(staged: bytes, rng: random.Random, donors: tuple[Message, ...]) -> bytes:
    if rng.random() < 0.2:
        return mutations.damaged_bytes(staged, rng)
    before, transaction = Transaction.FromString(staged), Transaction.FromString(staged)
    mutations.damage(transaction, rng, donors)
    if rng.random() < 0.9:
        # These two problems are found first and hide all others.
        transaction.uuid, transaction.read_version = before.uuid, before.read_version
    return transaction.SerializeToString()


def _damaged_manifest(body: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return mutations.damaged_bytes(body, rng)
    file: ManifestFile = decode(body)
    manifest, section, transaction = Manifest(), IndexSection(), Transaction()
    manifest.CopyFrom(file.manifest)
    section.CopyFrom(file.index_section)
    if file.transaction is not None:
        transaction.CopyFrom(file.transaction)
    mutations.damage(rng.choice((manifest, manifest, section, transaction)), rng)
    return encode(manifest, section.indices, transaction)


def _damage_deletion_files(root: Path, rng: random.Random) -> None:
    """Damage the deletion files that no version refers to: the staged ones."""
    used = set()
    for path in manifests(root).values():
        for fragment in decode(path.read_bytes()).manifest.fragments:
            if fragment.HasField("deletion_file"):
                file = fragment.deletion_file
                used.add(f"{fragment.id}-{file.read_version}-{file.id}")
    for path in (root / "_deletions").glob("*"):
        if path.stem not in used:
            body = mutations.damaged_bytes(path.read_bytes(), rng)
            path.unlink()
            path.write_bytes(body)


def _told(body: bytes) -> str:
    """The transaction as text, as far as it can be decoded."""
    try:
        return str(Transaction.FromString(body))[:3000]
    except ValueError:
        return body.hex()[:3000]
