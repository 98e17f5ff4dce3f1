"""Stages small changes for a small part of what pylance takes for each, because all writers run on this machine.

A writer of a real system has a machine to itself. Here many share one with everything that is to be measured. So data
files are copies of one that pylance wrote, with other rows in their place; and one scan finds the rows of several
changes, each of which becomes a transaction of its own, with the same content as that of `merge_insert` or `delete`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from committerd_client import staging
from committerd_client.staging.deletion import RowOffsets, delete_rows
from committerd_client.staging.fragments import fragment
from committerd_client.staging.keys import key_columns, name_keys
from committerd_client.staging.transactions import new_transaction, read_table
from committerd_common.messages import DataFragment, Transaction
from committerd_common.own_properties import BLAKE2B_8, BY_KEY, KEY_HASH, MERGE
from tests.acceptance.maintenance_soak.expected import Numbers
from tests.acceptance.maintenance_soak.table import STORAGE, columns_of, keys_named, rows

_ODD_ID, _ODD_VALUE = 0x1122334455667788, 0x0102030405060708
"""An id and a value whose bytes are nowhere else in a file."""


@dataclass(slots=True)
class Upsert:
    """One row gets another value, and one is new with the same value."""

    old: int
    new: int
    value: int


@dataclass(slots=True)
class Delete:
    """One row goes."""

    old: int


class SmallFiles:
    """Data files with `count` rows each."""

    def __init__(self, uri: str, count: int) -> None:
        """Raises `ValueError` if pylance does not write rows as they are."""
        self._folder, self._count = Path(uri, "data"), count
        row = rows({_ODD_ID + number: _ODD_VALUE for number in range(count)})
        (written,) = write_fragments(row, uri, mode="append", data_storage_version=STORAGE)
        self._fragment = fragment(written)
        self._body = (self._folder / self._fragment.files[0].path).read_bytes()
        self._parts = []
        for part in _bytes_of(row):
            if self._body.count(part) != 1:
                raise ValueError(f"a file of pylance {lance.__version__} does not hold rows as they are")
            self._parts.append((self._body.index(part), len(part)))

    def write(self, some: pa.Table) -> DataFragment:
        """Write a file with these rows."""
        body = bytearray(self._body)
        for (start, size), part in zip(self._parts, _bytes_of(some), strict=True):
            body[start : start + size] = part
        made = DataFragment()
        made.CopyFrom(self._fragment)
        made.files[0].path = f"{uuid.uuid4().hex}.lance"
        (self._folder / made.files[0].path).write_bytes(body)
        return made


class CheapStager:
    """Stages changes of one table. Threads may share it."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._keyed = key_columns(lance.dataset(uri), "id")
        self._cache = staging.KeyCache()
        self._ones, self._twos = SmallFiles(uri, 1), SmallFiles(uri, 2)

    def appends(self, values: Mapping[int, int]) -> list[Transaction]:
        """An Append of a file of its own for each row, by id; it names its key."""
        together, made = rows(values), []
        for number in range(len(values)):
            row = together.slice(number, 1)
            transaction = new_transaction(0)
            transaction.append.SetInParent()
            name_keys(transaction, keys_named(row, self._keyed))
            transaction.append.fragments.append(self._ones.write(row))
            made.append(transaction)
        return made

    def changes(self, wanted: Sequence[Upsert | Delete]) -> list[Transaction]:
        """A transaction for each change, all on the latest version.

        Raises `AssertionError` if the table does not have one of the rows, or has it twice.
        """
        dataset = lance.dataset(self._uri)
        ids = pa.array([one.old for one in wanted], pa.int64())
        view = self._cache.narrowed(dataset, read_table(dataset), {"id": ids})
        asked = f"id in ({', '.join(map(str, ids.to_pylist()))})"
        found = view.to_table(columns=["id"], filter=asked, with_row_address=True)
        addresses = dict(zip(found["id"].to_pylist(), found["_rowaddr"].to_pylist(), strict=True))
        if found.num_rows != len(wanted) or len(addresses) != len(wanted):
            raise AssertionError(f"version {dataset.version} has {sorted(addresses)} for {sorted(ids.to_pylist())}")
        table, made = read_table(view), []
        for one in wanted:
            offsets = RowOffsets()
            offsets.add(pa.array([addresses[one.old]], pa.uint64()))
            changed, removed = delete_rows(view, table, offsets, f"id = {one.old}")
            transaction = table.transaction(None, None)
            if isinstance(one, Delete):
                transaction.delete.predicate = f"id = {one.old}"
                transaction.delete.updated_fragments.extend(changed)
                transaction.delete.deleted_fragment_ids.extend(removed)
            else:
                both = rows({one.old: one.value, one.new: one.value})
                transaction.transaction_properties[MERGE] = BY_KEY
                transaction.update.updated_fragments.extend(changed)
                transaction.update.removed_fragment_ids.extend(removed)
                transaction.update.new_fragments.append(self._twos.write(both))
                transaction.update.fields_for_preserving_frag_bitmap.extend(_FIELDS)
                transaction.update.inserted_rows.CopyFrom(keys_named(both, self._keyed))
                transaction.transaction_properties[KEY_HASH] = BLAKE2B_8
            made.append(transaction)
        return made


_FIELDS: Final = (0, 1, 2)
"""The ids of the table's fields."""


def _bytes_of(some: pa.Table) -> tuple[bytes, ...]:
    """What a file has in it of these rows: the bytes of each column."""
    ids, values, vectors = columns_of(some)
    whole: tuple[Numbers, Numbers] = ids, values
    return *(one.tobytes() for one in whole), vectors.tobytes()
