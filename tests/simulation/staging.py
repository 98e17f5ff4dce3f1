"""What producers stage: small transactions of each kind, and records that are wrong in each way."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from committerd_common.messages import DataFragment, Field, Transaction
from committerd_common.own_properties import BLAKE2B_8, IN_ORDER, KEY_HASH, KEYS, ROWS

Header = tuple[str, bytes]

URI = "memory://table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """One record as its producer sends it, and the data files that must exist for it."""

    value: bytes
    headers: Sequence[Header] = ()
    files: Sequence[str] = field(default=())
    deletions: Mapping[str, bytes] = field(default_factory=dict)
    """The deletion files that must exist for it, by key."""


def new_uuid(rng: random.Random) -> UUID:
    return UUID(int=rng.getrandbits(128), version=4)


def column() -> Field:
    """The only column of the simulated table."""
    return Field(type=Field.LEAF, name="n", id=0, parent_id=-1, logical_type="int64", nullable=True)


def fragments(paths: Sequence[str]) -> list[DataFragment]:
    """Fragments with one file each."""
    made = []
    for path in paths:
        fragment = DataFragment(physical_rows=10)
        fragment.files.add(
            path=path, fields=[0], column_indices=[0], file_major_version=2, file_minor_version=0, file_size_bytes=100
        )
        made.append(fragment)
    return made


def append(uuid: UUID, paths: Sequence[str], *, read_version: int = 0) -> Transaction:
    transaction = Transaction(uuid=str(uuid), read_version=read_version)
    transaction.append.fragments.extend(fragments(paths))
    return transaction


def name_keys(transaction: Transaction, hashes: Sequence[int]) -> None:
    """Let an Append say which keys its rows have."""
    keys = Transaction.KeyExistenceFilter(field_ids=[0])
    keys.exact.SetInParent()
    keys.exact.key_hashes.extend(hashes)
    transaction.transaction_properties[KEYS] = b64encode(keys.SerializeToString()).decode()
    transaction.transaction_properties[KEY_HASH] = BLAKE2B_8


def overwrite(uuid: UUID, paths: Sequence[str], *, read_version: int = 0) -> Transaction:
    """Replaces the content; creates the table if there is none."""
    transaction = Transaction(uuid=str(uuid), read_version=read_version)
    transaction.overwrite.fragments.extend(fragments(paths))
    transaction.overwrite.schema.append(column())
    return transaction


def delete(uuid: UUID, fragment_id: int, *, read_version: int) -> Transaction:
    """Deletes a whole fragment."""
    transaction = Transaction(uuid=str(uuid), read_version=read_version)
    transaction.delete.deleted_fragment_ids.append(fragment_id)
    transaction.delete.predicate = "true"
    return transaction


def rewrite(uuid: UUID, old: Sequence[DataFragment], path: str, fragment_id: int, *, read_version: int) -> Transaction:
    """Copies fragments without deleted rows into one, in order."""
    transaction = Transaction(uuid=str(uuid), read_version=read_version)
    transaction.transaction_properties[ROWS] = IN_ORDER
    (new,) = fragments([path])
    new.id, new.physical_rows = fragment_id, sum(one.physical_rows for one in old)
    transaction.rewrite.groups.add(old_fragments=old, new_fragments=[new])
    return transaction


def delete_rows(uuid: UUID, changed: DataFragment, *, read_version: int) -> Transaction:
    """Deletes rows of a fragment, `changed`, which is as the transaction leaves it."""
    transaction = Transaction(uuid=str(uuid), read_version=read_version)
    transaction.delete.updated_fragments.append(changed)
    transaction.delete.predicate = "n = 1"
    return transaction


def upsert(
    uuid: UUID, changed: DataFragment, paths: Sequence[str], keys: Sequence[int], *, read_version: int
) -> Transaction:
    """Deletes rows of a fragment, adds fragments, and says which keys it inserts."""
    transaction = Transaction(uuid=str(uuid), read_version=read_version)
    transaction.update.updated_fragments.append(changed)
    transaction.update.new_fragments.extend(fragments(paths))
    transaction.update.inserted_rows.field_ids.append(0)
    transaction.update.inserted_rows.exact.key_hashes.extend(keys)
    transaction.transaction_properties[KEY_HASH] = BLAKE2B_8
    return transaction


def restore(uuid: UUID, version: int, *, read_version: int) -> Transaction:
    transaction = Transaction(uuid=str(uuid), read_version=read_version)
    transaction.restore.version = version
    return transaction


def reserve(uuid: UUID, count: int, *, read_version: int) -> Transaction:
    transaction = Transaction(uuid=str(uuid), read_version=read_version)
    transaction.reserve_fragments.num_fragments = count
    return transaction


def configure(uuid: UUID, *, read_version: int, replace: bool = False) -> Transaction:
    """Sets an entry of table_metadata, or replaces all entries with it."""
    transaction = Transaction(uuid=str(uuid), read_version=read_version)
    updates = transaction.update_config.table_metadata_updates
    updates.update_entries.add(key="owner", value=str(uuid))
    updates.replace = replace
    return transaction


def headers(**given: object) -> list[Header]:
    """Headers by their names, with `_` for `-`."""
    return [(name.replace("_", "-"), _text(value).encode()) for name, value in given.items()]


def garbage(rng: random.Random) -> Staged:
    """A record that can't be committed to any table."""
    good = append(new_uuid(rng), ["garbage.lance"])
    unnamed, climbing = Transaction(), Transaction()
    unnamed.CopyFrom(good)
    unnamed.uuid = "not a uuid"
    climbing.CopyFrom(good)
    climbing.append.fragments[0].files[0].path = "../../elsewhere.lance"
    return rng.choice(
        [
            Staged(value=b""),
            Staged(value=rng.randbytes(40)),
            Staged(value=unnamed.SerializeToString()),
            Staged(value=climbing.SerializeToString()),
            Staged(value=Transaction(uuid=str(new_uuid(rng))).SerializeToString()),
            Staged(value=good.SerializeToString(), headers=headers(dataset="memory://another")),
            Staged(value=good.SerializeToString(), headers=[("app-version", b"7")]),
            Staged(value=good.SerializeToString(), headers=[("producer", b"\xff\xfe")]),
            Staged(value=good.SerializeToString(), headers=[("create-options", b"[" * 5000 + b"]" * 5000)]),
            Staged(value=good.SerializeToString(), headers=[("create-options", b'{"\\ud800": 1}')]),
        ]
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, dict) else str(value)
