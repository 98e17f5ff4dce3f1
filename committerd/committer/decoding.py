"""Decodes a delivered record into a request: headers, and the transaction from the value or a claim check's file.

Decoding does not depend on the table's versions; only the file of a claim check is read from the table's folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from anyio import to_thread

from committerd.committer.containing import Containment
from committerd.errors import InvalidRequest
from committerd.lance.format.decoded_size import require_few_messages
from committerd.queue.dedupe import Refused
from committerd.queue.port import Record
from committerd.queue.producers import Admission
from committerd.table.heavy_work import LIGHT_BYTES_MAX
from committerd.table.prepare import create_options
from committerd.table.reading import read_named
from committerd.table.versions import Table
from committerd_common.paths import transaction_key
from committerd_common.request import (
    HEADER_BYTES_MAX,
    ClaimCheck,
    Request,
    decode_envelope,
    decode_transaction,
)
from committerd_common.uris import may_be_one_table, names_same_table

_SHOWN_MAX = 200
"""The length at which the name of another table is cut in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Decodes the records of one table's topic."""

    aliases: tuple[str, ...] = ()
    """Other URIs of the table that a record's header may name."""
    transaction_bytes_max: int = 8 * 1024 * 1024
    admission: Admission | None = None
    """Which producers may stage what; None = whoever may write to the topic may stage anything."""
    containment: Containment = field(default_factory=Containment)

    async def decode(
        self, record: Record, table: Table, *, bodies: Mapping[str, bytes | None] = MappingProxyType({})
    ) -> Request | Refused:
        """Return the request in a record, or its refusal.

        `bodies`: files of claim checks that were just read, by key; None = it is missing. Raises `StoreUnavailable`
        when the file of a claim check can't be read.
        """
        try:
            return await self._decode(record, table, bodies)
        except Exception as error:  # noqa: BLE001  # any error refuses this record
            return self.containment.refuse(error, stage="decode", offset=record.offset)

    async def _decode(self, record: Record, table: Table, bodies: Mapping[str, bytes | None]) -> Request:
        if record.headers_found:
            raise InvalidRequest(
                f"the record has {record.headers_found} headers; at most {len(record.headers)} are read, and the wire "
                f"contract defines {len(HEADER_BYTES_MAX)}",
                code="header_invalid",
            )
        envelope = decode_envelope(record.headers)
        producer = None if self.admission is None else self.admission.producer_of(record, envelope)
        if envelope.dataset is not None and not names_same_table(
            envelope.dataset, served=table.uri, aliases=self.aliases
        ):
            raise InvalidRequest(
                f"the producer meant table {envelope.dataset[:_SHOWN_MAX]!r}, but this topic is of {table.uri!r}: "
                + _other_table(envelope.dataset, table.uri),
                code="wrong_dataset",
            )
        create_options(envelope.create_options)
        body = record.value
        if envelope.claim is not None:
            body = await self._claimed(envelope.claim, body, table, bodies)
        if len(body) > LIGHT_BYTES_MAX:
            await to_thread.run_sync(require_few_messages, body)
        else:
            require_few_messages(body)
        return Request(
            offset=record.offset,
            envelope=envelope,
            transaction=decode_transaction(body, bytes_max=self.transaction_bytes_max),
            size=len(body),
            operations=None if producer is None else producer.operations,
            timestamp_ms=record.timestamp_ms,
        )

    async def _claimed(
        self, claim: ClaimCheck, value: bytes, table: Table, bodies: Mapping[str, bytes | None]
    ) -> bytes:
        """Read the transaction's bytes from the file that a claim check names, and verify them."""
        if value:
            raise InvalidRequest(
                "header transaction-file asks for a file, but the record has a value too: leave it empty",
                code="header_invalid",
            )
        key, limit, store = transaction_key(claim.name), self.transaction_bytes_max, table.store
        if key in bodies:
            body = bodies[key]
        else:
            body = await read_named(store, key, lambda: store.get_range(key, 0, limit + 1), code="claim_unreadable")
        if body is None:
            raise InvalidRequest(
                f"header transaction-file names {claim.name!r}, but _transactions/ has no such file",
                code="claim_missing",
            )
        if len(body) > limit:
            raise InvalidRequest(
                f"_transactions/{claim.name} has more than the {limit} bytes that are allowed (setting "
                "commit.transaction_bytes_max): commit in smaller parts",
                code="record_too_large",
            )
        if hashlib.sha256(body).hexdigest() != claim.sha256:
            raise InvalidRequest(
                f"_transactions/{claim.name} is not the file that header transaction-sha256 describes",
                code="claim_mismatch",
            )
        return body


def _other_table(meant: str, served: str) -> str:
    """What to do about a record that names another table. An alias of another table would mix the rows of both."""
    advice = "stage it to the topic of that table"
    if may_be_one_table(meant, served):
        advice += ". Only if both names are of one and the same folder, add this name to setting dataset.aliases"
    return advice


def claim_key(record: Record) -> str | None:
    """The key of the file that a claim check names; None if its headers are wrong."""
    with suppress(InvalidRequest):
        claim = decode_envelope(record.headers).claim
        return None if claim is None else transaction_key(claim.name)
    return None
