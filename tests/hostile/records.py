"""Hostile records: each one that ever did harm, and generators of similar ones.

A seed must be refused. A generated record may be harmless by accident, and is then committed. Neither may stop the
queue, exhaust the committer's memory, or keep a good record from being committed.
"""

from __future__ import annotations

import functools
import io
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from uuid import UUID

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyroaring import BitMap

from committerd_common.index_details import FRAGMENT_REUSE_INDEX, pack_details
from committerd_common.messages import (
    DataFragment,
    DeletionFile,
    Field,
    FragmentReuseIndexDetails,
    IndexMetadata,
    RowIdSequence,
    Transaction,
)
from committerd_common.paths import deletion_key, transaction_key
from tests.oracle import mutations

Header = tuple[str, bytes]


class Name(str):
    """A header's name as bytes that may not be text."""

    __slots__ = ("raw",)
    raw: bytes

    def encode(self, *_: object) -> bytes:
        return self.raw


def name_of(raw: bytes) -> Name:
    """kafka-python sends the result of the name's `encode`."""
    made = Name(raw.decode("latin-1"))
    made.raw = raw
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One record."""

    name: str
    value: bytes | None
    headers: Sequence[Header] = ()
    key: bytes | None = None
    is_seed: bool = True
    """Whether it must be refused."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The files that it names and that must be there, by key."""
    uuid: str = field(default="")


def counted(number: int, body: bytes) -> bytes:
    """A protobuf field that holds bytes, text or a message, as it is on the wire."""
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def repeated_messages(kind: Descriptor, path: tuple[FieldDescriptor, ...] = ()) -> Iterator[Sequence[FieldDescriptor]]:
    """The paths to all fields that hold many messages."""
    for inner in kind.fields:
        if inner.message_type is None or inner.message_type in [one.message_type for one in path]:
            continue
        if inner.is_repeated:
            yield (*path, inner)
        yield from repeated_messages(inner.message_type, (*path, inner))


def nearly_empty(path: Sequence[FieldDescriptor], count: int, message: bytes = b"") -> bytes:
    """A transaction with so many equal messages in the last field of this path."""
    return _inside(path[:-1], counted(path[-1].number, message) * count)


def _inside(path: Sequence[FieldDescriptor], content: bytes) -> bytes:
    """The bytes of a transaction with this content in the last field of this path."""
    for outer in reversed(path):
        content = counted(outer.number, content)
    return content


Good = Callable[[], Transaction]
"""Makes an Append that can be committed."""


_OPERATION_NUMBERS = [one.number for one in Transaction.DESCRIPTOR.oneofs_by_name["operation"].fields]
_PROPERTIES = Transaction.DESCRIPTOR.fields_by_name["transaction_properties"]
_PATHS = [path for path in repeated_messages(Transaction.DESCRIPTOR) if len(path) <= 2]


def seeds(good: Good, rng: random.Random, *, read_version: int, there: DataFragment) -> Iterator[Hostile]:
    """Every record that is known to have done harm.

    `read_version`: a version of the table; `there`: a fragment of it.
    """
    for name, headers in _headers(rng):
        yield Hostile(name=name, value=good().SerializeToString(), headers=headers)
    for name, change in _CHANGED_APPENDS.items():
        transaction = good()
        change(transaction)
        yield Hostile(name=name, value=transaction.SerializeToString())
    for name, operation in _operations(rng):
        operation.uuid, operation.read_version = _uuid(rng), read_version
        yield Hostile(name=name, value=operation.SerializeToString())
    for name, deletion in lying_deletions(there, rng, read_version=read_version):
        yield replace(deletion, name=f"a deletion file {name}")
    for name, value in wire_forms(good().SerializeToString(), rng):
        yield Hostile(name=name, value=value, is_seed=False)
    for name, claim in _CLAIMS.items():
        headers = [("transaction-file", claim.encode()), ("transaction-sha256", b"0" * 64)]
        yield Hostile(name=f"claim: {name}", value=b"", headers=headers)
    for name, update in _large_updates(there):
        update.uuid, update.read_version = _uuid(rng), read_version
        yield _claimed(name, update.SerializeToString(), f"{update.uuid}.txn")
    for path in _PATHS:
        yield Hostile(name=f"450,000 empty {path[-1].full_name}", value=nearly_empty(path, 450_000))
    fragments = Transaction.Append.DESCRIPTOR.fields_by_name["fragments"]
    append = Transaction.DESCRIPTOR.fields_by_name["append"]
    value = nearly_empty((append, fragments), 90_000, b"\x20\x01" * 4) + counted(2, _uuid(rng).encode())
    yield Hostile(name="90,000 fragments without a file", value=value)
    yield Hostile(name="no value", value=None, key=b"k")
    yield Hostile(name="a key as long as the record", value=b"\xff", key=b"k" * 1_000_000)
    for short_of in (10, 200, 1_000, 2_048, 20_000, 64 * 1024):
        yield Hostile(name=f"{short_of} bytes below the limit", value=b"\xff" * (1024 * 1024 - short_of - 100))


def mutated(
    good: Good, rng: random.Random, donors: Sequence[Transaction], *, read_version: int, there: DataFragment
) -> Iterator[Hostile]:
    """Yield records of the same kinds as the seeds, without end. Other arguments: as for `seeds`."""
    inner = tuple(part for donor in donors for part in mutations.parts(donor))
    number = 0
    while True:
        number += 1
        base = good() if rng.random() < 0.4 else _copy(rng.choice(donors))
        base.uuid = _uuid(rng)
        base.read_version = min(base.read_version, read_version)
        headers: list[Header] = []
        value: bytes
        match rng.randint(0, 11):
            case 10:
                _, value = rng.choice(list(wire_forms(base.SerializeToString(), rng)))
            case 11:
                lies = list(lying_deletions(there, rng, read_version=read_version))
                yield replace(rng.choice(lies)[1], name=f"mutation {number}", is_seed=False)
                continue
            case 0:
                value = mutations.damaged_bytes(base.SerializeToString(), rng)
            case 1:
                value, headers = base.SerializeToString(), _random_headers(rng)
            case 2 if rng.random() < 0.1:
                value = nearly_empty(rng.choice(_PATHS), rng.choice((2_000, 50_000)), rng.randbytes(rng.randint(0, 9)))
            case 2:
                value = rng.randbytes(rng.choice((0, 1, 7, 100, 5000)))
            case 3:
                _hurt_fragments(base, rng)
                value = base.SerializeToString()
            case _:
                mutations.damage(base, rng, inner)
                if rng.random() < 0.9:
                    base.uuid = _uuid(rng)
                value = base.SerializeToString()
        if len(value) > 900_000:
            continue
        yield Hostile(name=f"mutation {number}", value=value, headers=headers, is_seed=False)


def wire_forms(body: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """The bytes of a transaction in forms that no library writes; some mean the same, and some are invalid."""
    yield "an operation behind another", body + counted(rng.choice(_OPERATION_NUMBERS), b"")
    yield "an operation before another", counted(rng.choice(_OPERATION_NUMBERS), b"\x08\x01") + body
    yield "the same message twice", body + body
    keys = [counted(1, b"committerd.position") + counted(2, b"{}"), counted(1, b"k") + counted(2, b"v")]
    yield "a key of a map twice", body + b"".join(counted(_PROPERTIES.number, one) for one in (*keys, keys[1], keys[0]))
    yield "an entry of a map without a key", body + counted(_PROPERTIES.number, counted(2, b"v")) * 2
    for name, encoded in {
        "of ten bytes for 1": b"\x81" + b"\x80" * 8 + b"\x00",
        "of eleven bytes": b"\x81" + b"\x80" * 9 + b"\x00",
        "beyond 64 bits": b"\xff" * 9 + b"\x7f",
        "that never ends": b"\xff" * 500,
    }.items():
        yield f"a number {name}", body + _varint(1 << 3) + encoded
    for depth in (50, 99, 101, 100_000):
        yield f"unknown groups nested {depth} deep", body + b"\xfb\x7f" * depth + b"\xfc\x7f" * depth
    yield "a group that does not end", body + b"\xfb\x7f"
    for number in (0, 19_000, 2**29 - 1, 2**29):
        yield f"an unknown field {number}", body + _varint(number << 3 | 2) + b"\x02ab"
    yield "a length beyond the end", body + b"\xfa\x7f" + _varint(2**31 - 1) + b"a"
    yield "a length beyond 32 bits", body + b"\xfa\x7f" + _varint(2**40)
    yield "an operation of the wrong type", body + _varint(rng.choice(_OPERATION_NUMBERS) << 3) + b"\x01"
    yield "a uuid that is no text", body + counted(2, b"\xff\xfe")
    yield "100,000 uuids", body + counted(2, b"x") * 100_000 + body


def lying_deletions(there: DataFragment, rng: random.Random, *, read_version: int) -> Iterator[tuple[str, Hostile]]:
    """Deletes whose deletion file is not what they say, with what is wrong with it."""
    bitmap, array = DeletionFile.BITMAP, DeletionFile.ARROW_ARRAY
    one = bytes(BitMap([0]).serialize())
    everything = BitMap()
    everything.add_range(0, 2**32)
    everything.run_optimize()
    many = bytes(everything.serialize())
    lies: list[tuple[str, DeletionFile.DeletionFileType.ValueType, int, bytes]] = [
        ("that is an array and not a bitmap", bitmap, 1, arrow_array([0])),
        ("that is a bitmap and not an array", array, 1, one),
        ("with fewer rows than it says", bitmap, 2, one),
        ("with more rows than it says", bitmap, 1, bytes(BitMap([0, 1]).serialize())),
        ("of a row beyond the fragment", bitmap, 1, bytes(BitMap([there.physical_rows]).serialize())),
        ("of all rows below 2^32", bitmap, 1, many),
        ("of 2^64 rows", bitmap, 2**64 - 1, one),
        ("without rows", bitmap, 1, bytes(BitMap().serialize())),
        ("that is empty", bitmap, 1, b""),
        ("cut short", bitmap, 1, many[: len(many) // 2]),
        ("with a row twice", array, 2, arrow_array([0, 0])),
        ("of an array beyond the fragment", array, 1, arrow_array([2**32 - 1])),
        ("of two batches", array, 2, arrow_array([0], [1])),
        ("that grows from 17 KB to 512 MiB", array, 1, _grown_array()),
        ("that claims to grow", array, 1, _grown_array().replace((2**29).to_bytes(8, "little"), b"\xff" * 7 + b"\x3f")),
        ("that is damaged", array, 1, mutations.damaged_bytes(arrow_array([0]), rng)[:-1]),
    ]
    for name, kind, counted_rows, body in lies:
        changed = DataFragment()
        changed.CopyFrom(there)
        changed.deletion_file.CopyFrom(
            DeletionFile(
                file_type=kind, read_version=read_version, id=rng.getrandbits(63), num_deleted_rows=counted_rows
            )
        )
        made = Transaction(uuid=_uuid(rng), read_version=read_version)
        made.delete.updated_fragments.append(changed)
        made.delete.predicate = "true"
        files = {deletion_key(changed.id, changed.deletion_file, staged=True): body}
        yield name, Hostile(name=name, value=made.SerializeToString(), files=files)


def _large_updates(there: DataFragment) -> Iterator[tuple[str, Transaction]]:
    """Updates of a row of a fragment, whose deletion file is not there, that list more than fits in memory decoded."""
    changed = DataFragment()
    changed.CopyFrom(there)
    changed.deletion_file.CopyFrom(DeletionFile(file_type=DeletionFile.BITMAP, id=1, num_deleted_rows=1))
    named = Transaction(update=Transaction.Update(updated_fragments=[changed]))
    named.update.inserted_rows.field_ids.append(0)
    named.update.inserted_rows.exact.key_hashes.extend(range(20_000, 2_020_000))
    yield "an update that names two million keys", named
    covered = Transaction(update=Transaction.Update(updated_fragments=[changed]))
    covered.update.fields_for_preserving_frag_bitmap.extend(range(20_000, 1_520_000))
    yield "an update of 1,500,000 fields", covered


def heavy(rng: random.Random) -> Iterator[Hostile]:
    """Records of about as many messages as their size allows, or of as many numbers as possible; in any order.

    Each field has one that is as large as a record may be, and one that is as large as the file of a claim check. Some
    can be committed.
    """
    unknown = b"\xc0\x3e\x01" * 2  # a message takes memory for unknown fields too
    made = [
        (f"messages in {path[-1].full_name}", partial(nearly_empty, path, count, message))
        for path in repeated_messages(Transaction.DESCRIPTOR)
        for count, message in ((100_000, unknown), (390_000, unknown + counted(1001, bytes(9))))
    ]
    made += [
        (f"numbers in {path[-1].full_name}", partial(_inside, path, b"\x01" * count))
        for path in _repeated_numbers(Transaction.DESCRIPTOR)
        for count in (900_000, 8_300_000)
    ]
    made += [
        (f"different numbers in {path[-1].full_name}", partial(_inside, path, _different_numbers(count)))
        for path in _repeated_numbers(Transaction.DESCRIPTOR)
        for count in (300_000, 990_000, 2_000_000)
    ]
    rng.shuffle(made)
    for name, body_of in made:
        uuid = _uuid(rng)
        body = body_of() + counted(2, uuid.encode()) + b"\x08\x01"
        name = f"{len(body):,} bytes of {name}"
        record = Hostile(name=name, value=body) if len(body) < 1_000_000 else _claimed(name, body, f"{uuid}.txn")
        yield replace(record, is_seed=False)


@functools.cache
def _different_numbers(count: int) -> bytes:
    """So many different numbers of three or four bytes each."""
    return b"".join(_varint(number) for number in range(20_000, 20_000 + count))


def _repeated_numbers(kind: Descriptor, path: tuple[FieldDescriptor, ...] = ()) -> Iterator[Sequence[FieldDescriptor]]:
    """The paths to all fields that hold many numbers."""
    for inner in kind.fields:
        if inner.message_type is not None:
            if inner.message_type not in [one.message_type for one in path]:
                yield from _repeated_numbers(inner.message_type, (*path, inner))
        elif inner.is_packed:
            yield (*path, inner)


def _claimed(name: str, body: bytes, file: str) -> Hostile:
    """A record that names the file of a transaction."""
    headers = [("transaction-file", file.encode()), ("transaction-sha256", sha256(body).hexdigest().encode())]
    return Hostile(name=name, value=b"", headers=headers, files={transaction_key(file): body})


def arrow_array(*batches: Sequence[int]) -> bytes:
    """A deletion file in Arrow's format, compressed as pylance's are."""
    sink = io.BytesIO()
    schema = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for rows in batches:
            writer.write_batch(pa.record_batch([pa.array(rows, pa.uint32())], schema=schema))
    return sink.getvalue()


@functools.cache
def _grown_array() -> bytes:
    return arrow_array(np.zeros(2**27, np.uint32))  # type: ignore[arg-type]


def _headers(rng: random.Random) -> Iterator[tuple[str, Sequence[Header]]]:
    deep = b"[" * 5000 + b"]" * 5000
    yield "create-options nested 5,000 deep", [("create-options", deep)]
    yield "create-options with half a character", [("create-options", b'{"\\ud800": true}')]
    yield "create-options with a huge number", [("create-options", b'{"enable_stable_row_ids": 1' + b"0" * 5000 + b"}")]
    for uri in (
        "s3://[bucket]/x",
        "s3://[::1",
        "http://[",
        "//[x",
        "s3://bucket:port/x",
        "\udcff".encode("utf-8", "surrogatepass").decode("latin-1"),
    ):
        yield f"dataset {uri!r}", [("dataset", uri.encode())]
    yield "a name that is no text beside a wrong one", [(name_of(b"\xff\xfe"), b"1"), ("app-version", b"1")]
    yield "a long name that is no text", [(name_of(b"\xff" * 700_000), b""), ("app-version", b"1")]
    yield "500,000 empty headers", [("", b"")] * 500_000
    yield "5,000 headers of tracing", [(f"x-{number}", b"y" * 20) for number in range(5_000)]
    for name, values in {
        "app-version": (b"1", b"x"),
        "create-options": (b"{}", b"[" * 5000),
        "deadline-ms": (b"0", b"-1"),
        "transaction-file": (b"a.txn", b"../a.txn"),
        "dataset": (b"/tmp/x", b"s3://[x]/y"),
        "attempt": (b"1", b"0"),
    }.items():
        yield f"header {name} twice, the last one wrong", [("app-id", b"twice"), *((name, one) for one in values)]
    yield "a header 900 times", [("producer", b"p"), *[("attempt", b"2")] * 900, ("attempt", b"two")]
    yield "numbers that are no numbers", [("deadline-ms", "٣".encode())]
    yield "an attempt beyond all numbers", [("attempt", b"9" * 5000)]
    yield "a header called as ours", [("committerd-offset", b"x"), ("committerd-value-bytes", b"-1"), ("app-run", b"r")]


def _random_headers(rng: random.Random) -> list[Header]:
    names = [
        "dataset",
        "producer",
        "app-id",
        "app-version",
        "app-run",
        "create-only",
        "create-options",
        "read-uuid",
        "deadline-ms",
        "attempt",
        "retry-of",
        "replay-of",
        "outcome-partition",
        "transaction-file",
        "transaction-sha256",
        "traceparent",
    ]
    texts = (
        b"", b"0", b"1", b"-1", b"99999999999999999999", b"\xff\xfe", b"true", b"{}", b"[]", b"null",
        b'{"enable_stable_row_ids": true}', b"../x", b"a" * 3000, b"\0", b"00000000-0000-4000-8000-000000000000",
        b"[" * 3000, b"s3://[x]/y", b"0" * 64,
    )  # fmt: skip
    return [(rng.choice(names), rng.choice(texts)) for _ in range(rng.randint(1, 4))]


def _first(transaction: Transaction) -> DataFragment:
    return transaction.append.fragments[0]


def _set_path(path: str) -> Callable[[Transaction], None]:
    def change(transaction: Transaction) -> None:
        _first(transaction).files[0].path = path

    return change


def _set_rows(rows: int) -> Callable[[Transaction], None]:
    def change(transaction: Transaction) -> None:
        _first(transaction).physical_rows = rows

    return change


def _more_rows_than_its_file(transaction: Transaction) -> None:
    """An Append of a column that is in no file: a reader makes 2^31 empty values, which take 16 GiB."""
    fragment = _first(transaction)
    fragment.physical_rows = 2**31
    fragment.files[0].fields[:] = [2**20]


def _with_row_ids(transaction: Transaction) -> None:
    """An Append with a row id sequence of 109 bytes that stands for 2^60 rows."""
    sequence = RowIdSequence()
    for start in range(8):
        segment = sequence.segments.add()
        segment.range.start, segment.range.end = start << 57, (start + 1) << 57
    _first(transaction).inline_row_ids = sequence.SerializeToString()


_CHANGED_APPENDS: dict[str, Callable[[Transaction], None]] = {
    "path with a NUL": _set_path("a\0b.lance"),
    "path of 5,000 characters": _set_path("x" * 5000 + ".lance"),
    "path with an encoded parent": _set_path("%2e%2e/%2e%2e/other.lance/data/x.lance"),
    "path with an encoded separator": _set_path("link%2Fsecret.lance"),
    "path with a newline": _set_path("a\nb.lance"),
    "path of a parent": _set_path("../x.lance"),
    "path of a folder": _set_path("."),
    "a file that is not there": _set_path("not-there.lance"),
    "rows beyond 32 bits": _set_rows(2**60),
    "more rows than its file has": _more_rows_than_its_file,
    "row ids that mean 2^60 rows": _with_row_ids,
    "no operation": lambda transaction: transaction.ClearField("append"),
    "a key of ours": lambda transaction: transaction.transaction_properties.update({"committerd.position": "{}"}),
}


def _operations(rng: random.Random) -> Iterator[tuple[str, Transaction]]:
    for number in (2**32, 2**40, 2**63, 2**64 - 1):
        yield f"reuse index that names fragment {number}", _creating(_reuse_index(rng, new=number))
        yield f"reuse index of fragment {number}", _creating(_reuse_index(rng, old=number))
        yield f"reuse index whose content lies at {number}", _creating(_external_reuse_index(rng, offset=number))
        yield f"reuse index whose content has {number} bytes", _creating(_external_reuse_index(rng, size=number))
    yield "system index on a field", _creating(_reuse_index(rng, fields=[0]))
    yield "all but three ids are reserved", _reserving(2**32 - 3)
    yield "all ids are reserved", _reserving(2**32 - 1)
    configured = Transaction()
    for number in range(25_000):
        configured.update_config.config_updates.update_entries.add(key=f"key-{number}", value="v")
    yield "25,000 entries of configuration", configured
    nested = Transaction()
    nested.overwrite.schema.extend(_nested(20_000))
    yield "a schema that nests 20,000 structs", nested
    full = BitMap(range(2**24))
    full.run_optimize()
    for name, bitmap in {"that covers 2^24 fragments": bytes(full.serialize()), "cut short": b"\0\0"}.items():
        index = _index(rng, "i", fields=[0])
        index.fragment_bitmap = bitmap
        yield f"index with a bitmap {name}", _creating(index)
    yield "index on a field that nobody has", _creating(_index(rng, "i", fields=[2**31 - 1]))
    delete = Transaction()
    delete.delete.deleted_fragment_ids.extend([2**64 - 1])
    yield "a delete of a fragment beyond all ids", delete
    update = Transaction()
    update.update.removed_fragment_ids.extend([2**32])
    update.update.updated_fragment_offset_bitmaps[2**63] = bytes(full.serialize())
    yield "an update of offsets of a fragment beyond all ids", update
    restore = Transaction()
    restore.restore.version = 2**63
    yield "a restore of a version beyond all versions", restore
    for path in ("/etc", "s3://[x]/y", "file:///%2e%2e/etc"):
        bases = Transaction()
        bases.update_bases.new_bases.add(id=1, path=path)
        yield f"a base at {path}", bases


_CLAIMS = {
    "name above 255 characters": "x" * 300,
    "a folder": "%2e",
    "not there": "nothing.txn",
    "with a NUL": "a\0b",
    "with an encoded separator": "..%2F..%2Fetc%2Fpasswd",
}


def _uuid(rng: random.Random) -> str:
    return str(UUID(int=rng.getrandbits(128), version=4))


def _copy(transaction: Transaction) -> Transaction:
    made = Transaction()
    made.CopyFrom(transaction)
    return made


def _creating(index: IndexMetadata) -> Transaction:
    return Transaction(create_index=Transaction.CreateIndex(new_indices=[index]))


def _reserving(count: int) -> Transaction:
    return Transaction(reserve_fragments=Transaction.ReserveFragments(num_fragments=count))


def _index(rng: random.Random, name: str, *, fields: Sequence[int] = ()) -> IndexMetadata:
    made = IndexMetadata(name=name, fields=fields, dataset_version=1, fragment_bitmap=bytes(BitMap([0]).serialize()))
    made.uuid.uuid = rng.randbytes(16)
    made.index_details.type_url = "/lance.index.pb.BTreeIndexDetails"
    return made


def _reuse_index(rng: random.Random, *, old: int = 0, new: int = 7, fields: Sequence[int] = ()) -> IndexMetadata:
    details = FragmentReuseIndexDetails()
    group = details.inline.versions.add(dataset_version=1).groups.add()
    group.old_fragments.add(id=old, physical_rows=10)
    group.new_fragments.add(id=new, physical_rows=10)
    made = _index(rng, FRAGMENT_REUSE_INDEX, fields=fields)
    made.index_details.CopyFrom(pack_details(details))
    return made


def _external_reuse_index(rng: random.Random, *, offset: int = 0, size: int = 10) -> IndexMetadata:
    details = FragmentReuseIndexDetails()
    details.external.path, details.external.offset, details.external.size = "details.binpb", offset, size
    made = _index(rng, FRAGMENT_REUSE_INDEX)
    made.index_details.CopyFrom(pack_details(details))
    return made


def _nested(depth: int) -> Iterator[Field]:
    for number in range(depth):
        kind, logical = (Field.PARENT, "struct") if number < depth - 1 else (Field.LEAF, "int64")
        yield Field(id=number, parent_id=number - 1, name=f"f{number}", type=kind, logical_type=logical, nullable=True)


def _hurt_fragments(transaction: Transaction, rng: random.Random) -> None:
    """Set fields that did harm, in every fragment of the transaction."""
    for part in mutations.parts(transaction):
        if not isinstance(part, DataFragment):
            continue
        match rng.randint(0, 4):
            case 0:
                part.id = rng.choice((2**32 - 2, 2**32 - 1, 2**32, 2**63, 2**64 - 1))
            case 1:
                part.inline_row_ids = mutations.hostile_sequence(rng)
            case 2:
                part.inline_created_at_versions = mutations.hostile_sequence(rng)
            case 3:
                part.physical_rows = rng.choice((0, 1, 2**31, 2**32, 2**63, 2**64 - 1))
            case _:
                part.deletion_file.id = rng.choice((0, 2**64 - 1))
                part.deletion_file.num_deleted_rows = rng.choice((0, 1, 2**64 - 1))


def as_json(hostile: Hostile) -> str:
    """The message as short, printable text."""
    return json.dumps({"name": hostile.name, "bytes": len(hostile.value or b""), "headers": len(hostile.headers)})
