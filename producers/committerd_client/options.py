"""What a client is made with, and what one commit may ask for. Both faces of the client take the same."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from committerd_client.claim_check import WriteClaim
from committerd_client.headers import AppUnit
from committerd_common.backports import Required

MIB = 1024 * 1024


class ClientTimeout:
    """Stands for the timeout that the client was made with."""

    def __repr__(self) -> str:
        return "<the client's timeout>"


CLIENTS_TIMEOUT = ClientTimeout()

Timeout = float | ClientTimeout | None
"""Seconds; None waits for ever."""


class CommitOptions(TypedDict, total=False):
    """What the caller wants of one commit, beside the transaction; sent as headers of its record."""

    app: AppUnit | None
    """(app_id, version, run) of a replayable source: a version at or below the one that is recorded is DUPLICATE."""
    create_only: bool
    """A table that exists is not overwritten: RETRYABLE `table_exists`."""
    create_options: Mapping[str, Any]
    """How a new table is made, as in `Staged`."""
    read_uuid: str | None
    """Of the transaction that made the read version."""
    deadline: datetime | None
    """With a time zone; after it the committer must not commit any more."""
    attempt: int | None
    """Number of a re-execution after `RetryableConflict`, the first execution being 1. Set by `reexecute`."""
    retry_of: str | None
    """The uuid that was refused. Set by `reexecute`."""
    traceparent: str | None
    """W3C trace context."""


class ClientOptions(TypedDict, total=False):
    """Arguments of `CommitClient` that have names; what each means and its default stands there."""

    dataset: Required[str]
    topic_prefix: str
    dataset_uri: str | None
    storage_options: Mapping[str, str] | None
    producer: str | None
    timeout: float | None
    connect_timeout: float
    close_timeout: float
    max_in_flight: int
    max_in_flight_bytes: int
    max_record_bytes: int
    claim_check_above: int | None
    write_claim: WriteClaim | None
    client_id: str
    group_prefix: str
    kafka_options: Mapping[str, Any] | None
