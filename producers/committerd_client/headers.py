"""A staged record: its value is the transaction's bytes, its headers are the options of the commit.

The committer's own decoder checks the headers, so the client refuses invalid headers before it sends the record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from committerd_client.arguments import kind_of
from committerd_client.errors import InvalidTransaction, TransactionTooLarge
from committerd_common.errors import InvalidRequest
from committerd_common.messages import Transaction
from committerd_common.request import decode_envelope, decode_transaction


class App(NamedTuple):
    """One unit of work of a replayable source.

    The record gets DUPLICATE if its version is at or below the highest one that is committed for its id.
    """

    app_id: str
    """1 to 128 of the characters A-Z a-z 0-9 . _ -"""
    version: int
    """Number of the unit; it grows with each unit, and is below 2^53."""
    run: str = ""
    """Identifies the source of these versions, such as the id of a Spark query.

    A record with the same app id and another run is INVALID."""
    after: int | None = None
    """The number of the unit that must be the last one in the table, 0 = there must be none; None = any.

    Otherwise the record is RETRYABLE `mark_moved`: for a source that two processes may read at once."""


AppUnit = App | tuple[str, int] | tuple[str, int, str] | tuple[str, int, str, int | None]


def app_unit(given: AppUnit) -> App:
    """The unit, with all its parts. Raises `TypeError` for anything else; its values are checked with the record."""
    kinds = (str, int, str, int | None)
    if (
        not isinstance(given, tuple)
        or len(given) not in (2, 3, 4)
        or not all(isinstance(one, kind) for one, kind in zip(given, kinds, strict=False))
        or isinstance(given[1], bool)
    ):
        raise TypeError(f"app takes (app_id, version), such as ('daily-load', 20261031), not {given!r}")
    return App(*given)


def require_app(given: AppUnit) -> None:
    """Raise `TypeError` or `InvalidTransaction` if it can't be a unit."""
    app = app_unit(given)
    try:
        decode_envelope(_encode(RecordOptions(app=app), None))
    except InvalidRequest as error:
        raise InvalidTransaction(f"app={tuple(given)!r}: {error}", code=error.code) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A transaction with the headers that belong to it, ready for `CommitClient.commit`."""

    transaction: Transaction
    create_only: bool = False
    """Never overwrite an existing table: if it exists, the outcome is RETRYABLE `table_exists`."""
    create_options: Mapping[str, Any] = field(default_factory=dict)
    """Options for a new table, with pylance's names: `enable_stable_row_ids`, `enable_v2_manifest_paths`, ..."""
    read_uuid: str | None = None
    """The uuid of the transaction that made the read version; with it the committer notices that the table was made
    again under the same name."""
    uri: str | None = field(default=None, compare=False)
    """Where the dataset that it was planned against lies; None without one."""
    branch: str | None = field(default=None, compare=False)
    """The branch at which that dataset was open; empty for the main branch, None without a dataset."""
    can_catch_up: bool = False
    """Whether an execution that gets this as `Reexecution.work` needs to read only the rows that came since. `commit`
    then has the first re-execution brought up to date before it sends it, if that re-execution took long.
    """

    def __repr__(self) -> str:
        # Not the whole message, which may have thousands of lines.
        transaction = self.transaction
        operation = transaction.WhichOneof("operation") or "no operation"
        return f"<{type(self).__name__} {operation} {transaction.uuid}, read version {transaction.read_version}>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StagedChange(Staged):
    """A change of rows, with the numbers of rows that it inserts, updates and deletes."""

    inserted: int = 0
    """Number of rows; `updated` and `deleted` too."""
    updated: int = 0
    deleted: int = 0

    @property
    def changes(self) -> bool:
        """Whether it changes any row, or makes the table. If not, the new version would equal the one before."""
        return bool(self.inserted or self.updated or self.deleted or self.create_only)

    def __repr__(self) -> str:
        rows = f"{self.inserted} rows inserted, {self.updated} updated, {self.deleted} deleted"
        return f"{Staged.__repr__(self)[:-1]}, {rows}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """The options of one commit; they become headers of its record."""

    app: AppUnit | None = None
    create_only: bool = False
    create_options: Mapping[str, Any] = field(default_factory=dict)
    read_uuid: str | None = None
    deadline: datetime | None = None
    attempt: int | None = None
    retry_of: str | None = None
    will_retry: bool = False
    traceparent: str | None = None


_NO_OPTIONS = RecordOptions()


def record_options(options: Mapping[str, Any]) -> RecordOptions:
    """The options of one commit. Raises `TypeError` for one that does not exist."""
    for name in options:
        if name not in RecordOptions.__dataclass_fields__:
            raise TypeError(f"commit has no option {name!r}; it has {', '.join(RecordOptions.__dataclass_fields__)}")
    return RecordOptions(**options)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRecord:
    """The key, value and headers of a record in the staged topic."""

    uuid: str
    value: bytes
    headers: list[tuple[str, bytes]]

    @property
    def size(self) -> int:
        """An upper bound of the record's bytes on the wire; a batch with this record alone adds less than 1 KiB."""
        named = sum(len(name) + len(value) + _PER_HEADER for name, value in self.headers)
        return len(self.value) + len(self.uuid) + named + _PER_RECORD


_PER_HEADER = 10  # two lengths as varints
_PER_RECORD = 88  # kafka-python: DefaultRecordBatchBuilder.estimate_size_in_bytes of an empty record


def make_record(
    transaction: Transaction | bytes | Staged,
    asking: RecordOptions,
    constant: Sequence[tuple[str, bytes]],
) -> StagedRecord:
    """The record that asks for a commit. `constant`: headers that every record of a client has.

    Raises `InvalidTransaction` for a record that the committer would refuse whatever the table holds, and `TypeError`
    for a value that is not a transaction.
    """
    staged = transaction if isinstance(transaction, Staged) else None
    message = transaction.transaction if isinstance(transaction, Staged) else transaction
    if isinstance(message, Transaction):
        value = message.SerializeToString()
    elif isinstance(message, bytes):
        value = message
    else:
        if message is None:
            raise TypeError("there is nothing to commit: None, which helpers return if there is nothing to do")
        if isinstance(message, list | tuple) and message and isinstance(message[0], Staged | Transaction | bytes):
            raise TypeError(f"commit takes one transaction, not a {kind_of(message)} of them: call commit_many")
        raise TypeError(
            "a lance.table.Transaction (committerd_common.messages) or its bytes is needed, not "
            f"{kind_of(message)}. To write rows and commit them, call client.append(rows), upsert(rows, on=...) "
            "and so on; committerd_client.staging makes a transaction of files that are written already"
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
    """The error for a record that is too large for Kafka, if the client can't write its bytes beside the table."""
    return TransactionTooLarge(
        f"transaction {record.uuid} makes a record of {record.size} bytes, and {bytes_max} are allowed "
        "(max_record_bytes, claim_check_above). Let the client put large transactions beside the table: give it "
        "dataset_uri, and storage_options where the storage needs them, with pylance installed (extra `lance`), or "
        "write_claim=. Or commit in smaller parts",
        uuid=record.uuid,
    )


def constant_headers(*, dataset_uri: str | None, producer: str, outcome_partition: int) -> list[tuple[str, bytes]]:
    """The headers that every record of a client has."""
    headers = [("producer", producer.encode()), ("outcome-partition", b"%d" % outcome_partition)]
    if dataset_uri is not None:
        headers.append(("dataset", dataset_uri.encode()))
    return headers


def _encode(asking: RecordOptions, staged: Staged | None) -> list[tuple[str, bytes]]:
    if staged is None and asking == _NO_OPTIONS:
        return []
    create_options = {**(staged.create_options if staged else {}), **asking.create_options}
    read_uuid = asking.read_uuid or (staged.read_uuid if staged else None)
    texts: dict[str, str] = {}
    if asking.app is not None:
        app = app_unit(asking.app)
        texts["app-id"], texts["app-version"] = app.app_id, str(app.version)
        if app.run:
            texts["app-run"] = app.run
        if app.after is not None:
            texts["app-after"] = str(app.after)
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
    if asking.will_retry:
        texts["will-retry"] = "true"
    if asking.traceparent is not None:
        texts["traceparent"] = asking.traceparent
    return [(name, text.encode()) for name, text in texts.items()]


def _unix_ms(moment: datetime) -> int:
    if not isinstance(moment, datetime):
        raise TypeError(f"deadline takes a datetime with a time zone, not {moment!r}")
    if moment.tzinfo is None:
        raise ValueError(f"deadline {moment.isoformat()} has no time zone: use datetime.now(UTC) + timedelta(...)")
    return int(moment.timestamp() * 1000)
