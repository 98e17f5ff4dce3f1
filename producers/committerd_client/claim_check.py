"""Claim check: a transaction that is too large for a record is written beside the table, and the record names the file.

The committer reads `_transactions/{name}` and compares its sha256 with the header. The name contains the uuid and the
digest, so a transaction that is staged again finds its own file, and no other transaction replaces that file. The name
ends in `.txn`: Lance's cleanup deletes such files once they are 7 days old and no version names them. It treats data
files in the same way.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec

import anyio.to_thread

from committerd_client.errors import SubmitFailed
from committerd_client.headers import StagedRecord

WriteClaim = Callable[[str, bytes], Awaitable[None] | None]
"""Called with a file name and bytes: it must store the file durably in the table's `_transactions/` before it returns.

A plain function runs in a worker thread. Calls with the same name always have the same bytes.
"""


async def check(record: StagedRecord, write: WriteClaim) -> StagedRecord:
    """Write the record's bytes with `write`, and return a record that names the file. Raises `SubmitFailed`."""
    name = claim_name(record)
    try:
        if inspect.iscoroutinefunction(write):
            await write(name, record.value)
        elif inspect.isawaitable(pending := await anyio.to_thread.run_sync(write, name, record.value)):
            await pending
    except Exception as error:
        raise SubmitFailed(
            f"transaction {record.uuid} is too large for a record, and _transactions/{name} could not be written "
            f"beside the table: {error}. Nothing was sent; when that is repaired, commit the same transaction again",
            code="claim_not_written",
            uuid=record.uuid,
        ) from error
    return claimed(record)


def claim_name(record: StagedRecord) -> str:
    """The name of the file that holds the transaction."""
    return f"{record.uuid}-{_sha256(record)[:16]}.txn"


def claimed(record: StagedRecord) -> StagedRecord:
    """The same record, with the name of the file in place of the bytes."""
    headers = [
        *record.headers,
        ("transaction-file", claim_name(record).encode()),
        ("transaction-sha256", _sha256(record).encode()),
    ]
    return replace(record, value=b"", headers=headers)


def table_writer(uri: str, storage_options: Mapping[str, str] | None = None) -> WriteClaim | None:
    """A `WriteClaim` that uses pylance and the table's `storage_options`; None if pylance is not installed."""
    if find_spec("lance") is None:
        return None

    def write(name: str, body: bytes) -> None:
        from lance.file import LanceFileSession  # imported here because it takes a third of a second

        folder = f"{uri.rstrip('/')}/_transactions"
        session = LanceFileSession(folder, storage_options=dict(storage_options or {}) or None)
        with tempfile.TemporaryDirectory() as temporary:
            path = os.path.join(temporary, name)
            with open(path, "wb") as file:
                file.write(body)
            session.upload_file(path, name)

    return write


def _sha256(record: StagedRecord) -> str:
    return hashlib.sha256(record.value).hexdigest()
