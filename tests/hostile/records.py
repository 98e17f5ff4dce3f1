"""Hostile records: each one that ever did harm, and generators of similar ones.

A seed must be refused. A generated record may be harmless by accident, and is then committed. Neither may stop the
queue, exhaust the committer's memory, or keep a good record from being committed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyroaring import BitMap

from committerd_common.index_details import FRAGMENT_REUSE_INDEX, pack_details
from committerd_common.messages import (
    DataFragment,
    Field,
    FragmentReuseIndexDetails,
    IndexMetadata,
    RowIdSequence,
    Transaction,
)
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
    body = counted(path[-1].number, message) * count
    for outer in reversed(path[:-1]):
        body = counted(outer.number, body)
    return body


Good = Callable[[], Transaction]
"""Makes an Append that can be committed."""


_PATHS = [path for path in repeated_messages(Transaction.DESCRIPTOR) if len(path) <= 2]


def seeds(good: Good, rng: random.Random, *, read_version: int) -> Iterator[Hostile]:
    """Every record that is known to have done harm. `read_version`: a version of the table."""
    for name, headers in _headers(rng):
        yield Hostile(name=name, value=good().SerializeToString(), headers=headers)
    for name, change in _CHANGED_APPENDS.items():
        transaction = good()
        change(transaction)
        yield Hostile(name=name, value=transaction.SerializeToString())
    for name, operation in _operations(rng):
        operation.uuid, operation.read_version = _uuid(rng), read_version
        yield Hostile(name=name, value=operation.SerializeToString())
    for name, claim in _CLAIMS.items():
        headers = [("transaction-file", claim.encode()), ("transaction-sha256", b"0" * 64)]
        yield Hostile(name=f"claim: {name}", value=b"", headers=headers)
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


def mutated(good: Good, rng: random.Random, donors: Sequence[Transaction], *, read_version: int) -> Iterator[Hostile]:
    """Yield records of the same kinds as the seeds, without end."""
    inner = tuple(part for donor in donors for part in mutations.parts(donor))
    number = 0
    while True:
        number += 1
        base = good() if rng.random() < 0.4 else _copy(rng.choice(donors))
        base.uuid = _uuid(rng)
        base.read_version = min(base.read_version, read_version)
        headers: list[Header] = []
        value: bytes
        match rng.randint(0, 9):
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
