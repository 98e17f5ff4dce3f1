"""A table as users have it: written and read by pylance, the current one here, and 4.0.0 in a process of its own."""

from __future__ import annotations

import base64
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa

from committerd_client import Staged, staging
from committerd_common.messages import Member, Members, Refusal, Refusals, Transaction

_ROOT = Path(__file__).resolve().parents[1]
_SCHEMA = pa.schema([pa.field("id", pa.int64())])
_STORAGE: Final = "2.0"
"""Both versions of pylance can write and read it."""
_READ = """
import json, sys, lance
table = lance.dataset(sys.argv[1])
print(json.dumps({"pylance": lance.__version__, "version": table.version, "ids": table.to_table()["id"].to_pylist()}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version: the metadata that pylance returns, and the data that committerd has stored in it."""

    number: int
    uuid: str
    operation: str
    members: Sequence[Member] = ()
    refusals: Sequence[Refusal] = ()
    ours: bool = False
    position: Mapping[str, Any] | None = None
    """The position that the version carries, its own or inherited."""

    def entries(self) -> Iterator[Member | Refusal]:
        """The records that it settles."""
        yield from self.members
        yield from self.refusals


class LanceTable:
    """The table of a dataset. Each row is a distinct id, so a lost or doubled row is always detected."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.uri = uri
        self._options = dict(storage_options or {})
        self.brought: dict[str, list[int]] = {}
        """The ids that each staged transaction adds, by uuid."""
        self._next_id = 0

    def create(self, rows: int = 1, **options: Any) -> list[int]:
        """Create the table with pylance; returns the ids of its rows."""
        ids = self.new_ids(rows)
        lance.write_dataset(
            _rows(ids), self.uri, data_storage_version=_STORAGE, storage_options=self._options, **options
        )
        return ids

    def new_ids(self, count: int) -> list[int]:
        """Ids that no row has yet."""
        self._next_id += count
        return list(range(self._next_id - count, self._next_id))

    def append(self, rows: int = 1, *, read_version: int = 0, uuid: str | None = None) -> Transaction:
        """Write the files of new rows; returns the transaction that appends them, which is not staged."""
        ids = self.new_ids(rows)
        made = staging.append(self._write(ids, mode="append"), read_version=read_version, uuid=uuid)
        self.brought[made.uuid] = ids
        return made

    def appends(self, count: int) -> list[Transaction]:
        """Like `count` calls of `append` with one row, but writes all files at once."""
        ids = self.new_ids(count)
        fragments = self._write(ids, mode="append", max_rows_per_file=1)
        assert len(fragments) == count
        made = [staging.append([fragment]) for fragment in fragments]
        self.brought |= {transaction.uuid: [number] for transaction, number in zip(made, ids, strict=True)}
        return made

    def staged_create(self, rows: int = 1) -> Staged:
        """Write the files of new rows; returns the transaction that creates a table with them."""
        ids = self.new_ids(rows)
        made = staging.create(self._write(ids, mode="create"), _SCHEMA, data_storage_version=_STORAGE)
        self.brought[made.transaction.uuid] = ids
        return made

    def write(self, rows: int = 1) -> list[int]:
        """Commit rows with pylance, not through the queue; returns their ids."""
        ids = self.new_ids(rows)
        lance.write_dataset(_rows(ids), self.uri, mode="append", storage_options=self._options)
        return ids

    def open(self, version: int | None = None) -> Any:
        """pylance's dataset. `version`: None = the latest."""
        return lance.dataset(self.uri, version=version, storage_options=self._options)

    @property
    def version(self) -> int:
        """The latest version."""
        return int(self.open().version)

    def ids(self) -> list[int]:
        """The ids in the latest version, in no order."""
        return list(self.open().to_table()["id"].to_pylist())

    def ids_in_4(self) -> list[int]:
        """The ids in the latest version, as pylance 4.0.0 reads it."""
        read = run_in_4(_READ, self.uri)
        assert read["pylance"] == "4.0.0"
        assert read["version"] == self.version
        return list(read["ids"])

    def metadata(self, version: int | None = None) -> dict[str, str]:
        """The table_metadata of a version."""
        return dict(self.open(version).metadata)

    def versions(self) -> list[Version]:
        """All readable versions, ascending."""
        table = self.open()
        return [_version(table, entry["version"]) for entry in table.versions()]

    def data_file(self, transaction: Transaction) -> Path:
        """The first data file of an Append."""
        return Path(self.uri, "data", transaction.append.fragments[0].files[0].path)

    def _write(self, ids: Sequence[int], *, mode: str, **options: Any) -> Any:
        return lance.fragment.write_fragments(
            _rows(ids), self.uri, mode=mode, data_storage_version=_STORAGE, storage_options=self._options, **options
        )


def run_in_4(script: str, *arguments: str) -> Any:
    """Run a script under pylance 4.0.0; returns the JSON that it prints last."""
    environment = os.environ | {"LANCE_LOG": "error"}
    done = subprocess.run(
        [old_python(), "-c", script, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@functools.cache
def old_python() -> str:
    """The Python that has pylance 4.0.0; it may not exist."""
    given = os.environ.get("COMMITTERD_PYLANCE_4")
    if given:
        return given
    script = _ROOT / "scripts" / "bootstrap.py"
    return subprocess.run(
        [sys.executable, script, "--pylance-4"], capture_output=True, text=True, check=True
    ).stdout.strip()


def _rows(ids: Sequence[int]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())}, schema=_SCHEMA)


def _version(table: Any, number: int) -> Version:
    transaction = table.read_transaction(number)
    said = transaction.transaction_properties
    metadata = table.checkout_version(number).metadata
    position = metadata.get("committerd.position")
    return Version(
        number=number,
        uuid=transaction.uuid,
        operation=type(transaction.operation).__name__,
        members=Members.FromString(base64.b64decode(said.get("committerd.members", ""))).members,
        refusals=Refusals.FromString(base64.b64decode(said.get("committerd.refused", ""))).refusals,
        ours="committerd.members" in said,
        position=json.loads(position) if position else None,
    )
