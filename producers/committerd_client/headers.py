"""A staged record: the transaction's bytes, and in its headers everything about the asking.

Headers are checked with the decoder that the committer uses, so that what it would refuse is refused before it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from committerd_client.errors import InvalidTransaction, TransactionTooLarge
from committerd_common.errors import InvalidRequest
from committerd_common.messages import Transaction
from committerd_common.request import decode_envelope, decode_transaction


class App(NamedTuple):
    """One unit of work of a replayable source: DUPLICATE at or below the highest version committed for its id."""

    app_id: str
    """1 to 128 of the characters A-Z a-z 0-9 . _ -"""
    version: int
    """Grows with each unit; below 2^53."""
    run: str = ""
    """Who counts these versions, such as a Spark query's id. The same app id from another run is INVALID."""


AppUnit = App | tuple[str, int] | tuple[str, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A transaction with the headers that belong to it, ready for `CommitClient.commit`."""

    transaction: Transaction
    create_only: bool = False
    """A table that exists is not overwritten: RETRYABLE `table_exists`."""
    create_options: Mapping[str, Any] = field(default_factory=dict)
    """How a new table is made, names as in pylance: `enable_stable_row_ids`, `enable_v2_manifest_paths`, ..."""
    read_uuid: str | None = None
    """Of the transaction that made the read version, so that another table under the same name is noticed."""
    can_catch_up: bool = False
    """Whether an execution that is given this as `Reexecution.work` needs to look only at what is new since. `commit`
    then has a first re-execution that took long brought up to date before it is sent.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What the caller wants of one commit, beside the transaction."""

    app: AppUnit | None = None
    create_only: bool = False
    create_options: Mapping[str, Any] = field(default_factory=dict)
    read_uuid: str | None = None
    deadline: datetime | None = None
    attempt: int | None = None
    retry_of: str | None = None
    traceparent: str | None = None


_NOTHING_ASKED = Asking()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRecord:
    """What goes to Kafka."""

    uuid: str
    value: bytes
    headers: list[tuple[str, bytes]]

    @property
    def size(self) -> int:
        """An upper bound of its bytes on the wire; a batch of it alone adds less than 1 KiB."""
        named = sum(len(name) + len(value) + _PER_HEADER for name, value in self.headers)
        return len(self.value) + len(self.uuid) + named + _PER_RECORD


_PER_HEADER = 10  # two lengths as varints
_PER_RECORD = 88  # kafka-python: DefaultRecordBatchBuilder.estimate_size_in_bytes of nothing


def make_record(
    transaction: Transaction | bytes | Staged,
    asking: Asking,
    constant: Sequence[tuple[str, bytes]],
) -> StagedRecord:
    """The record that asks for a commit. `constant`: headers that each record of a client has.

    Raises `InvalidTransaction` for what the committer would refuse whatever the table says.
    """
    staged = transaction if isinstance(transaction, Staged) else None
    message = transaction.transaction if isinstance(transaction, Staged) else transaction
    if isinstance(message, Transaction):
        value = message.SerializeToString()
    elif isinstance(message, bytes):
        value = message
    else:
        raise TypeError(
            "a lance.table.Transaction (committerd_common.messages) or its bytes is needed, not "
            f"{type(message).__name__}; committerd_client.staging turns pylance's results into one"
        )
    try:
        uuid = decode_transaction(value, bytes_max=max(len(value), 1)).uuid
        asked = _encode(asking, staged)
        if asked:
            decode_envelope(asked)
    except InvalidRequest as error:
        raise InvalidTransaction(str(error), code=error.code) from error
    return StagedRecord(uuid=uuid, value=value, headers=[*constant, *asked])


def too_large(record: StagedRecord, bytes_max: int) -> TransactionTooLarge:
    """The error for a record that Kafka would not take, where nobody can put its bytes beside the table."""
    return TransactionTooLarge(
        f"transaction {record.uuid} makes a record of {record.size} bytes, and {bytes_max} are allowed "
        "(max_record_bytes, claim_check_above). Let the client put large transactions beside the table: give it "
        "dataset_uri, and storage_options where the storage needs them, with pylance installed (extra `lance`), or "
        "write_claim=. Or commit in smaller parts",
        uuid=record.uuid,
    )


def constant_headers(*, dataset_uri: str | None, producer: str, outcome_partition: int) -> list[tuple[str, bytes]]:
    """What each record of a client carries."""
    headers = [("producer", producer.encode()), ("outcome-partition", b"%d" % outcome_partition)]
    if dataset_uri is not None:
        headers.append(("dataset", dataset_uri.encode()))
    return headers


def _encode(asking: Asking, staged: Staged | None) -> list[tuple[str, bytes]]:
    if staged is None and asking == _NOTHING_ASKED:
        return []
    create_options = {**(staged.create_options if staged else {}), **asking.create_options}
    read_uuid = asking.read_uuid or (staged.read_uuid if staged else None)
    texts: dict[str, str] = {}
    if asking.app is not None:
        app = App(*asking.app)
        texts["app-id"], texts["app-version"] = app.app_id, str(app.version)
        if app.run:
            texts["app-run"] = app.run
    if asking.create_only or (staged is not None and staged.create_only):
        texts["create-only"] = "true"
    if create_options:
        texts["create-options"] = json.dumps(create_options)
    if read_uuid is not None:
        texts["read-uuid"] = read_uuid
    if asking.deadline is not None:
        texts["deadline-ms"] = str(_unix_ms(asking.deadline))
    if asking.attempt is not None:
        texts["attempt"] = str(asking.attempt)
    if asking.retry_of is not None:
        texts["retry-of"] = asking.retry_of
    if asking.traceparent is not None:
        texts["traceparent"] = asking.traceparent
    return [(name, text.encode()) for name, text in texts.items()]


def _unix_ms(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ValueError(f"deadline {moment.isoformat()} has no time zone: use datetime.now(UTC) + timedelta(...)")
    return int(moment.timestamp() * 1000)
