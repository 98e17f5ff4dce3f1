"""Requests: records of the staged topic, decoded.

A record's value is one `lance.table.Transaction`, exactly as in a `.txn` file. Everything else is in optional UTF-8
headers (`docs/wire-contract.md`). Decoding has two steps, because the transaction may be in a file of the table instead
(claim check): `decode_envelope` reads the headers, `decode_transaction` the bytes, wherever they came from.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from committerd_common.errors import InvalidRequest
from committerd_common.messages import DECODE_ERRORS, Transaction

APP_VERSION_MAX = 2**53 - 1
"""The largest whole number that every language's JSON reads back exactly."""
MARK_MOVED = "mark_moved"
"""The reason of a unit of an application that does not follow the last one. Doing the same unit again can't help: who
stages it has to read the table's mark first.
"""

SIGNATURE = "signature"
"""The header that holds a record's signature (`committerd_common.signature`)."""

_APP_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
HEADER_BYTES_MAX: Mapping[str, int] = {
    "app-after": 128,
    "app-id": 512,
    "app-run": 1024,
    "app-version": 128,
    "attempt": 128,
    "create-only": 128,
    "create-options": 4096,
    "dataset": 4096,
    "deadline-ms": 128,
    "outcome-partition": 128,
    "producer": 4096,
    "read-uuid": 128,
    "replay-of": 512,
    "retry-of": 128,
    SIGNATURE: 128,
    "traceparent": 4096,
    "transaction-file": 1024,
    "transaction-sha256": 128,
    "will-retry": 128,
}
"""The headers that are read, with the most bytes that each may have.

An object's key has at most 1,024 bytes, and a path at most 4,096.
"""
_ASKING = HEADER_BYTES_MAX.keys() - {"dataset", "outcome-partition", "producer", SIGNATURE, "traceparent"}
_SIGNATURE_BYTES_MAX = HEADER_BYTES_MAX[SIGNATURE]
_REMEMBERED_MAX = 32
_REMEMBERED_BYTES_MAX = 1024
"""Envelopes are cached for records with at most this many headers, and at most this many bytes of headers."""
COPIED_BYTES_MAX = 256
"""The bytes of UTF-8 at which a header is cut before it is copied into versions, outcomes and logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppUnit:
    """One unit of work of a replayable source (headers `app-id`, `app-version`, `app-run`, `app-after`)."""

    app_id: str
    version: int
    run: str = ""
    after: int | None = None
    """The version of the unit that must be the last one in the table, 0 = there must be none; None = any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCheck:
    """The transaction's bytes are in the file of this name in `_transactions/`."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The headers of a staged record."""

    dataset: str | None = None
    producer: str = ""
    app: AppUnit | None = None
    create_only: bool = False
    create_options: Mapping[str, Any] = field(default_factory=dict)
    read_uuid: str | None = None
    deadline_ms: int | None = None
    attempt: int = 1
    retry_of: str | None = None
    will_retry: bool = False
    replay_of: str | None = None
    outcome_partition: int = 0
    claim: ClaimCheck | None = None
    traceparent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A staged record, decoded."""

    offset: int
    envelope: Envelope
    transaction: Transaction
    size: int
    """Size of the transaction in bytes."""
    operations: frozenset[str] | None = None
    """The operations that its producer may stage; None: what the committer commits."""
    timestamp_ms: int = 0

    @property
    def uuid(self) -> str:
        return self.transaction.uuid

    @property
    def operation(self) -> str:
        """The operation's name in the Transaction's oneof; `""` if none is set."""
        return self.transaction.WhichOneof("operation") or ""


def sent_sha256(key: bytes | None, value: bytes) -> str:
    """The SHA-256 of a record's key and value, as hex digits; the table's position names its last record by it."""
    digest = hashlib.sha256()
    digest.update(b"-" if key is None else b"+" + len(key).to_bytes(4, "big") + key)
    digest.update(value)
    return digest.hexdigest()


def headers_size(headers: Sequence[tuple[str, bytes]]) -> int:
    """The size of all names and values, in bytes."""
    size = 0
    for name, value in headers:
        size += (len(name) if name.isascii() else len(name.encode("utf-8", "replace"))) + len(value)
    return size


def who_asked(headers: Sequence[tuple[str, bytes]]) -> Envelope:
    """Those of producer, attempt, outcome partition and traceparent that can be read. Never raises.

    They suffice to publish the outcome of a record whose other headers are wrong.
    """
    last = dict(headers)
    traceparent = last.get("traceparent")
    return Envelope(
        producer=_copied(last.get("producer", b"")),
        attempt=max(_small_number(last.get("attempt", b"1")), 1),
        outcome_partition=_small_number(last.get("outcome-partition", b"0")),
        traceparent="" if traceparent is None else _copied(traceparent),
    )


def _small_number(value: bytes) -> int:
    """A number of at most nine digits; 0 for anything else."""
    return int(value) if len(value) < 10 and value.isdigit() else 0


def _copied(value: bytes) -> str:
    """A header's text as it is copied; what is not UTF-8 is replaced."""
    text = value[:COPIED_BYTES_MAX].decode("utf-8", "replace")
    if len(value) <= COPIED_BYTES_MAX and "\ufffd" not in text:
        return text
    return text.encode()[:COPIED_BYTES_MAX].decode("utf-8", "ignore")


def decode_envelope(headers: Sequence[tuple[str, bytes]]) -> Envelope:
    """Decode the headers. If a header occurs twice, the last one counts; unknown headers are ignored.

    A header that is longer than `HEADER_BYTES_MAX` allows is refused before anything is made of it. Raises
    `InvalidRequest` with code `header_invalid`, and the header's name in the message. The signature is not verified.
    """
    # A signature differs from record to record, and the headers beside it do not.
    headers = [(name, value) for name, value in headers if name != SIGNATURE or len(value) > _SIGNATURE_BYTES_MAX]
    if len(headers) > _REMEMBERED_MAX or headers_size(headers) > _REMEMBERED_BYTES_MAX:
        return _decode_envelope(headers)
    return _remembered(tuple(headers))


def _decode_envelope(headers: Sequence[tuple[str, bytes]]) -> Envelope:
    texts = {}
    for name, value in headers:
        bytes_max = HEADER_BYTES_MAX.get(name)
        if bytes_max is not None:
            if len(value) > bytes_max:
                raise InvalidRequest(
                    f"header {name} has {len(value)} bytes; at most {bytes_max} are allowed", code="header_invalid"
                )
            try:
                texts[name] = value.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _wrong(name, repr(value[:60]), "UTF-8 text") from error
    known = who_asked(headers)
    if _ASKING.isdisjoint(texts):  # most records have no other headers
        return Envelope(
            dataset=texts.get("dataset"),
            producer=known.producer,
            outcome_partition=known.outcome_partition,
            traceparent=known.traceparent,
        )
    return Envelope(
        dataset=texts.get("dataset"),
        producer=known.producer,
        app=_app(texts),
        create_only=_flag(texts, "create-only"),
        create_options=_options(texts),
        read_uuid=_uuid(texts, "read-uuid"),
        deadline_ms=_number(texts, "deadline-ms"),
        attempt=_number(texts, "attempt", least=1) or 1,
        retry_of=_uuid(texts, "retry-of"),
        will_retry=_flag(texts, "will-retry"),
        replay_of=texts.get("replay-of"),
        outcome_partition=known.outcome_partition,
        claim=_claim(texts),
        traceparent=known.traceparent,
    )


_remembered = lru_cache(maxsize=256)(_decode_envelope)
"""The cached decoder: most records of a producer have the same headers as the one before."""


def decode_transaction(body: bytes, *, bytes_max: int) -> Transaction:
    """Decode the transaction in `body`, and check that its uuid is canonical. The operation is not checked.

    Raises `InvalidRequest` with code `record_empty`, `record_too_large` (more than `bytes_max` bytes),
    `record_undecodable` or `uuid_invalid`.
    """
    if not body:
        raise InvalidRequest(
            "the record's value is empty: stage the bytes of one lance.table.Transaction",
            code="record_empty",
        )
    if len(body) > bytes_max:
        raise InvalidRequest(
            f"the transaction has {len(body)} bytes, more than the {bytes_max} that are allowed "
            "(setting commit.transaction_bytes_max): commit in smaller parts",
            code="record_too_large",
        )
    try:
        transaction = Transaction.FromString(body)
    except DECODE_ERRORS as error:
        raise InvalidRequest(
            f"the value ({len(body)} bytes) is not a lance.table.Transaction: {error}. "
            "Stage the serialized message itself, without a length or magic in front",
            code="record_undecodable",
        ) from error
    if not _UUID.fullmatch(transaction.uuid):
        raise InvalidRequest(
            f"Transaction.uuid is {transaction.uuid[:60]!r}; a lower-case uuid with hyphens is needed",
            code="uuid_invalid",
        )
    return transaction


def _app(texts: Mapping[str, str]) -> AppUnit | None:
    app_id = texts.get("app-id")
    if app_id is None:
        for name in ("app-version", "app-run", "app-after"):
            if name in texts:
                raise _wrong(name, texts[name], "header app-id beside it")
        return None
    if not _APP_ID.fullmatch(app_id):
        raise _wrong("app-id", app_id, "1 to 128 of the characters A-Z a-z 0-9 . _ -")
    version = _number(texts, "app-version")
    if version is None or version > APP_VERSION_MAX:
        raise _wrong(
            "app-version",
            texts.get("app-version", "missing"),
            "a decimal number below 2^53 with each app-id",
        )
    after = _number(texts, "app-after")
    if after is not None and after >= version:
        raise _wrong("app-after", texts["app-after"], f"a number below that of app-version ({version})")
    return AppUnit(app_id=app_id, version=version, run=texts.get("app-run", ""), after=after)


def _claim(texts: Mapping[str, str]) -> ClaimCheck | None:
    name, sha256 = texts.get("transaction-file"), texts.get("transaction-sha256")
    if name is None:
        return None
    if not name or "/" in name or "\\" in name or name.startswith(".") or "\0" in name:
        raise _wrong("transaction-file", name, "one file name in _transactions/, without a separator")
    if sha256 is None or not _SHA256.fullmatch(sha256):
        raise _wrong("transaction-sha256", sha256 or "missing", "the file's sha256, 64 lower-case hex digits")
    return ClaimCheck(name=name, sha256=sha256)


def _options(texts: Mapping[str, str]) -> dict[str, Any]:
    text = texts.get("create-options")
    if text is None:
        return {}
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong("create-options", text, "a JSON object") from error
    if not isinstance(options, dict):
        raise _wrong("create-options", text, "a JSON object")
    return options


def _flag(texts: Mapping[str, str], name: str) -> bool:
    text = texts.get(name, "false").lower()
    if text not in ("true", "false"):
        raise _wrong(name, text, "true or false")
    return text == "true"


def _number(texts: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    text = texts.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20) or int(text) < least:
        raise _wrong(name, text, f"a decimal number of at least {least}")
    return int(text)


def _uuid(texts: Mapping[str, str], name: str) -> str | None:
    text = texts.get(name)
    if text is not None and not _UUID.fullmatch(text):
        raise _wrong(name, text, "a lower-case uuid with hyphens")
    return text


def _wrong(name: str, got: str, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"header {name} is {got[:100]!r}; {wanted} is needed", code="header_invalid")
