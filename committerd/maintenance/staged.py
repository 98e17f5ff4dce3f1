"""Reads the transactions of staged records as the committer does, with the same bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anyio import to_thread

from committerd.errors import InvalidRequest, UnsupportedRequest
from committerd.lance.format.decoded_size import SMALL_BYTES_MAX, require_few_messages
from committerd.queue.port import Record
from committerd.stores.port import ObjectStore
from committerd.table.reading import read_named
from committerd_common.messages import Transaction
from committerd_common.paths import transaction_key
from committerd_common.request import decode_envelope, decode_transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedReader:
    """Reads the staged records of one table."""

    store: ObjectStore
    bytes_max: int
    """Maximum bytes of a transaction: setting commit.transaction_bytes_max."""
    unreadable: Callable[[str, Exception], None] = lambda *_: None
    """Called with the key of a claim check's file that can't be read, and the error."""

    async def transaction(self, record: Record) -> tuple[Transaction | None, str | None]:
        """The record's transaction, and the key of the file that its claim check names, if it has a claim check.

        There is no transaction if the committer refuses the record whatever the table holds: it can't be decoded, the
        file is gone or can't be read while the table can, it has more than `bytes_max` bytes, or its messages would
        take too much memory. Raises `StoreUnavailable`.
        """
        key: str | None = None
        try:
            claim = decode_envelope(record.headers).claim
            body: bytes | None = record.value
            if claim is not None:
                key = transaction_key(claim.name)
                body = await self._claimed(key)
            if body is None or len(body) > self.bytes_max:
                return None, key
            if len(body) > SMALL_BYTES_MAX:
                await to_thread.run_sync(require_few_messages, body)
            return decode_transaction(body, bytes_max=self.bytes_max), key
        except (InvalidRequest, UnsupportedRequest):
            return None, key

    async def _claimed(self, key: str) -> bytes | None:
        """The file of a claim check, as far as it may be read; None if it is gone or can't be read."""
        try:
            return await read_named(self.store, key, lambda: self.store.get_range(key, 0, self.bytes_max + 1))
        except InvalidRequest as error:
            self.unreadable(key, error)
            return None
