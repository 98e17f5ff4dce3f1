"""docs/wire-vectors.json: staged records and their outcomes, byte for byte, for every operation and status.

A stranger's encoder must make these values and headers, and its decoder must read these outcomes. The records form one
history: each is staged after the outcome of the one before it. tests/e2e/test_wire_vectors.py stages them for a real
committer, and compares its outcomes with these.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf import text_format
from pyroaring import BitMap

from committerd_common.index_details import MEM_WAL_INDEX, pack_details
from committerd_common.messages import (
    UUID,
    BTreeIndexDetails,
    DataFile,
    DataFragment,
    DeletionFile,
    Field,
    IndexMetadata,
    MemWalIndexDetails,
    MergedGeneration,
    Outcome,
    Status,
    Transaction,
)
from scripts.generate.key_vectors import ABOUT as KEYS_ABOUT
from scripts.generate.key_vectors import key_vectors
from scripts.generate.signature_vectors import ABOUT as SIGNATURES_ABOUT
from scripts.generate.signature_vectors import SECRET, signature_vectors
from scripts.generate.signature_vectors import TOPIC as SIGNED_TOPIC

FILE, SOURCE = "docs/wire-vectors.json", "scripts/generate/wire_vectors.py"
TABLE = "s3://example/lake/events.lance"
"""The table that the records name."""
PRODUCER = "vectors"
CLAIM = "claimed.txn"
INDEX = bytes(range(16))
MEM_WAL = bytes(range(16, 32))
INDEX_FILE = "_indices/00010203-0405-0607-0809-0a0b0c0d0e0f/page_data.lance"
"""Of the index with that uuid."""
DATA_FILE_BYTES = 100
ID, VALUE, NOTE = 0, 1, 2
"""Ids of the columns."""

ABOUT = (
    "Staged records and their outcomes, made by scripts/generate/wire_vectors.py. They form one history of one table: "
    "each record is staged after the outcome of the one before it. Keys, headers, values and outcomes are hexadecimal; "
    "`transaction` and `message` show the same in protobuf's text format. An outcome of a real committer differs in "
    "cluster_id, topic, topic_id, queued_ms, commit_ms and message. `files` must be in the table's folder: data files "
    "as placeholders of this many bytes, because a committer looks at their size only. Where a record has "
    "`cleaned_up_to`, versions up to this one are deleted and the committer is started again before it is staged."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A record, and what the committer says to it."""

    name: str
    uuid: str
    value: bytes
    outcome: Mapping[str, Any]
    """Fields of the outcome, beside those that follow from the record."""
    headers: Mapping[str, str] = field(default_factory=dict)
    staged: Transaction | None = None
    """What the value, or the file of a claim check, holds; None if that is no transaction."""
    cleaned_up_to: int | None = None
    """Before it is staged, the versions up to this one are cleaned up and the committer is started again."""
    is_read: bool = True
    """Whether the committer reads the transaction; if not, the outcome has an empty key and no uuid."""

    @property
    def answered_uuid(self) -> str:
        """The uuid in the outcome, and its key."""
        return self.uuid if self.is_read else ""


def column(number: int, name: str) -> Field:
    return Field(id=number, name=name, parent_id=-1, logical_type="int64", nullable=True)


def data_file(name: str, *columns: int) -> DataFile:
    return DataFile(
        path=f"{name}.lance",
        fields=columns,
        column_indices=range(len(columns)),
        file_major_version=2,
        file_minor_version=0,
        file_size_bytes=DATA_FILE_BYTES,
    )


def fragment(number: int, rows: int, name: str, *, deleted: DeletionFile | None = None) -> DataFragment:
    return DataFragment(id=number, physical_rows=rows, files=[data_file(name, ID, VALUE)], deletion_file=deleted)


def deletion(read_version: int, number: int, rows: int) -> DeletionFile:
    return DeletionFile(file_type=DeletionFile.BITMAP, read_version=read_version, id=number, num_deleted_rows=rows)


FIRST_DELETED = deletion(2, 7, 1)
SECOND_DELETED = deletion(3, 8, 2)
FILES: Mapping[str, bytes] = {
    "_deletions/0-2-7.bin": bytes(BitMap([1]).serialize()),
    "_deletions/1-3-8.bin": bytes(BitMap([0, 2]).serialize()),
}
"""The deletion files."""


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def transaction(number: int, read_version: int, **operation: Any) -> Transaction:
    return Transaction(read_version=read_version, uuid=uuid(number), **operation)


def vector(name: str, staged: Transaction, /, *, headers: Mapping[str, str] | None = None, **outcome: Any) -> Vector:
    value = staged.SerializeToString(deterministic=True)
    given = {"dataset": TABLE, "producer": PRODUCER, **(headers or {})}
    return Vector(name=name, uuid=staged.uuid, value=value, outcome=outcome, headers=given, staged=staged)


def committed(version: int, **more: Any) -> dict[str, Any]:
    return {"status": Status.COMMITTED, "version": version, "transactions": 1, **more}


def append(number: int, read_version: int, name: str) -> Transaction:
    return transaction(number, read_version, append=Transaction.Append(fragments=[fragment(0, 10, name)]))


def operations() -> Iterator[Vector]:
    """Every operation that a queue commits by default; each makes the next version."""
    schema = [column(ID, "id"), column(VALUE, "value")]
    yield vector(
        "create",
        transaction(1, 0, overwrite=Transaction.Overwrite(schema=schema)),
        headers={"create-only": "true", "create-options": '{"data_storage_version":"2.0"}', "outcome-partition": "0"},
        **committed(1),
    )
    both = Transaction.Append(fragments=[fragment(0, 10, "a"), fragment(0, 10, "b")])
    yield vector("append", transaction(2, 1, append=both), **committed(2))
    deleted = Transaction.Delete(updated_fragments=[fragment(0, 10, "a", deleted=FIRST_DELETED)], predicate="id = 1")
    yield vector("delete", transaction(3, 2, delete=deleted), **committed(3))
    updated = Transaction.Update(
        updated_fragments=[fragment(1, 10, "b", deleted=SECOND_DELETED)],
        new_fragments=[fragment(0, 2, "c")],
        update_mode=Transaction.REWRITE_ROWS,
    )
    yield vector("update", transaction(4, 3, update=updated), **committed(4))
    yield vector(
        "reserve_fragments",
        transaction(5, 4, reserve_fragments=Transaction.ReserveFragments(num_fragments=1)),
        **committed(5, reserved_first=3, reserved_count=1),
    )
    group = Transaction.Rewrite.RewriteGroup(
        old_fragments=[fragment(0, 10, "a", deleted=FIRST_DELETED)], new_fragments=[fragment(3, 9, "d")]
    )
    yield vector("rewrite", transaction(6, 5, rewrite=Transaction.Rewrite(groups=[group])), **committed(6))
    index = IndexMetadata(
        uuid=UUID(uuid=INDEX),
        name="id_idx",
        fields=[ID],
        dataset_version=6,
        fragment_bitmap=bytes(BitMap([1, 2, 3]).serialize()),
        index_details=pack_details(BTreeIndexDetails()),
        index_version=0,
    )
    mem_wal = IndexMetadata(
        uuid=UUID(uuid=MEM_WAL),
        name=MEM_WAL_INDEX,
        dataset_version=6,
        index_details=pack_details(MemWalIndexDetails()),
        index_version=0,
    )
    made = Transaction.CreateIndex(new_indices=[index, mem_wal])
    yield vector("create_index", transaction(7, 6, create_index=made), **committed(7))
    wider = [
        fragment(1, 10, "b", deleted=SECOND_DELETED),
        fragment(2, 2, "c"),
        fragment(3, 9, "d"),
    ]
    for one in wider:
        one.files.append(data_file(f"note-{one.id}", NOTE))
    merged = Transaction.Merge(fragments=wider, schema=[*schema, column(NOTE, "note")])
    yield vector("merge", transaction(8, 7, merge=merged), **committed(8))
    replaced = Transaction.DataReplacementGroup(fragment_id=2, new_file=data_file("note-new", NOTE))
    yield vector(
        "data_replacement",
        transaction(9, 8, data_replacement=Transaction.DataReplacement(replacements=[replaced])),
        **committed(9),
    )
    yield vector("project", transaction(10, 9, project=Transaction.Project(schema=schema)), **committed(10))
    owner = Transaction.UpdateMap(update_entries=[Transaction.UpdateMapEntry(key="owner", value="team")])
    changed = Transaction.UpdateConfig(config_updates=owner)
    yield vector("update_config", transaction(11, 10, update_config=changed), **committed(11))
    generation = MergedGeneration(region_id=UUID(uuid=bytes(range(16))), generation=1)
    state = Transaction.UpdateMemWalState(merged_generations=[generation])
    yield vector("update_mem_wal_state", transaction(12, 11, update_mem_wal_state=state), **committed(12))
    yield vector("restore", transaction(13, 12, restore=Transaction.Restore(version=2)), **committed(13))


def headers() -> Iterator[Vector]:
    """What headers ask for."""
    unit = {"app-id": "stream", "app-version": "1", "app-run": "run-1"}
    yield vector("application", append(14, 13, "e"), headers=unit, **committed(14))
    yield vector("re-execution", append(15, 14, "f"), headers={"attempt": "2", "retry-of": uuid(99)}, **committed(15))
    claimed = append(16, 15, "g")
    bytes_ = claimed.SerializeToString(deterministic=True)
    claim = {"transaction-file": CLAIM, "transaction-sha256": hashlib.sha256(bytes_).hexdigest()}
    yield Vector(
        name="claim check",
        uuid=claimed.uuid,
        value=b"",
        headers={"dataset": TABLE, "producer": PRODUCER, **claim},
        outcome=committed(16),
        staged=claimed,
    )
    yield vector(
        "staged again",
        append(14, 13, "e"),
        status=Status.DUPLICATE,
        version=14,
        reason="uuid_seen",
    )
    yield vector(
        "application staged again",
        append(17, 13, "e"),
        headers=unit,
        status=Status.DUPLICATE,
        version=14,
        reason="app_version_seen",
    )
    following = {"app-id": "stream", "app-version": "2", "app-run": "run-1", "app-after": "1"}
    yield vector("application that follows", append(26, 18, "h"), headers=following, **committed(19))
    yield vector(
        "application that was overtaken",
        append(27, 18, "h"),
        headers={**following, "app-version": "3"},
        status=Status.RETRYABLE,
        reason="mark_moved",
        message="version 3 of application 'stream' must follow its version 1 (header app-after), and the last one in "
        "the table is 2: go on behind it",
    )


def refusals() -> Iterator[Vector]:
    """What is not committed."""
    schema = [column(ID, "id"), column(VALUE, "value")]
    yield vector(
        "create again",
        transaction(18, 0, overwrite=Transaction.Overwrite(schema=schema)),
        headers={"create-only": "true"},
        status=Status.RETRYABLE,
        reason="table_exists",
        message="the table exists already, at version 20",
    )
    deleted = Transaction.Delete(updated_fragments=[fragment(0, 10, "a", deleted=FIRST_DELETED)])
    yield vector(
        "what can't pass what came since",
        transaction(19, 2, delete=deleted),
        status=Status.INCOMPATIBLE,
        reason="conflict",
        conflicting_version=12,
        conflicting_operation="update_mem_wal_state",
    )
    yield vector(
        "read version of the future", append(20, 1000, "e"), status=Status.INVALID, reason="future_read_version"
    )
    elsewhere = append(21, 16, "e")
    yield Vector(
        name="another table",
        uuid=elsewhere.uuid,
        value=elsewhere.SerializeToString(deterministic=True),
        headers={"dataset": "s3://example/lake/other.lance", "producer": PRODUCER},
        outcome={"status": Status.INVALID, "reason": "wrong_dataset"},
        staged=elsewhere,
        is_read=False,
    )
    yield Vector(
        name="no transaction",
        uuid="",
        value=b"\xff",
        headers={"dataset": TABLE, "producer": PRODUCER},
        outcome={"status": Status.INVALID, "reason": "record_undecodable"},
        is_read=False,
    )
    clone = Transaction.Clone(is_shallow=True, ref_version=1, ref_path=TABLE)
    yield vector("clone", transaction(22, 0, clone=clone), status=Status.UNSUPPORTED, reason="operation_not_allowed")
    yield vector(
        "update_bases",
        transaction(23, 16, update_bases=Transaction.UpdateBases()),
        status=Status.UNSUPPORTED,
        reason="operation_not_allowed",
    )
    yield vector(
        "too late", append(24, 16, "e"), headers={"deadline-ms": "1"}, status=Status.EXPIRED, reason="deadline_passed"
    )
    lost = vector(
        "history cleaned up",
        append(25, 2, "e"),
        status=Status.UNDECIDED,
        reason="history_gap",
        conflicting_version=3,
    )
    yield replace(lost, cleaned_up_to=12)


def vectors() -> list[Vector]:
    """All of them, in the order in which they are staged."""
    return [*operations(), *headers(), *refusals()]


def expected(one: Vector, offset: int) -> Outcome:
    """The outcome, with the fields that follow from the record."""
    staged = one.staged if one.staged is not None and one.is_read else Transaction()
    return Outcome(
        uuid=one.answered_uuid,
        read_version=staged.read_version,
        operation=staged.WhichOneof("operation") or "",
        cluster_id="AAAAAAAAAAAAAAAAAAAAAA",
        topic="events.staged",
        topic_id="AAAAAAAAAAAAAAAAAAAAAQ",
        offset=offset,
        producer=PRODUCER,
        **one.outcome,
    )


def files(all_of_them: Sequence[Vector]) -> list[dict[str, Any]]:
    """What must be in the table's folder."""
    named = {
        file.path
        for one in all_of_them
        if one.staged is not None
        for fragment_ in _fragments(one.staged)
        for file in fragment_.files
    }
    (claim,) = [one.staged for one in all_of_them if not one.value and one.staged is not None]
    contents = {**FILES, f"_transactions/{CLAIM}": claim.SerializeToString(deterministic=True)}
    return [
        {"path": INDEX_FILE, "placeholder_bytes": DATA_FILE_BYTES},
        *({"path": f"data/{path}", "placeholder_bytes": DATA_FILE_BYTES} for path in sorted(named)),
        *({"path": path, "content": content.hex()} for path, content in sorted(contents.items())),
    ]


def _fragments(staged: Transaction) -> Iterator[DataFragment]:
    yield from staged.append.fragments
    yield from staged.update.new_fragments
    yield from staged.merge.fragments
    for group in staged.rewrite.groups:
        yield from group.new_fragments
    for replacement in staged.data_replacement.replacements:
        yield DataFragment(files=[replacement.new_file])


def shown(one: Vector, offset: int) -> dict[str, Any]:
    """A record with its outcome, as it stands in the file."""
    outcome = expected(one, offset)
    return {
        "name": one.name,
        **({} if one.cleaned_up_to is None else {"cleaned_up_to": one.cleaned_up_to}),
        "offset": offset,
        "key": one.uuid.encode().hex(),
        "headers": [[name, value.encode().hex()] for name, value in one.headers.items()],
        "value": one.value.hex(),
        "transaction": _text(one.staged) if one.staged is not None else None,
        "outcome": {
            "key": one.answered_uuid.encode().hex(),
            "headers": [["topic", b"events.staged".hex()], ["offset", str(offset).encode().hex()]],
            "value": outcome.SerializeToString(deterministic=True).hex(),
            "message": _text(outcome),
        },
    }


def _text(message: Transaction | Outcome) -> list[str]:
    """protobuf's text format, line by line."""
    return text_format.MessageToString(message).splitlines()


def text() -> str:
    """Return the content of the file."""
    all_of_them = vectors()
    content = {
        "about": ABOUT,
        "table": TABLE,
        "files": files(all_of_them),
        "records": [shown(one, offset) for offset, one in enumerate(all_of_them)],
        "key_hash": {"about": KEYS_ABOUT, "keys": key_vectors()},
        "signature": {
            "about": SIGNATURES_ABOUT,
            "topic": SIGNED_TOPIC,
            "secret": SECRET,
            "records": signature_vectors(),
        },
    }
    return json.dumps(content, indent=1) + "\n"
