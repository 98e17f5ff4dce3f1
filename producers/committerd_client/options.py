"""Options of one commit, of new tables and of their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from committerd_client.arguments import count
from committerd_client.headers import AppUnit

MIB = 1024 * 1024


class ClientTimeout:
    """A placeholder for the client's own `timeout`."""

    def __repr__(self) -> str:
        return "<the client's timeout>"


CLIENTS_TIMEOUT = ClientTimeout()

Timeout = float | ClientTimeout | None
"""Seconds; None waits forever."""


class CommitOptions(TypedDict, total=False):
    """Options of one commit; they become headers of its record."""

    app: AppUnit | None
    """(app_id, version, run) of a replayable source; a version at or below the recorded one gets DUPLICATE."""
    create_only: bool
    """Never overwrite an existing table: if it exists, the outcome is RETRYABLE `table_exists`."""
    create_options: Mapping[str, Any]
    """Options for a new table, as in `Staged`."""
    read_uuid: str | None
    """The uuid of the transaction that made the read version."""
    deadline: datetime | None
    """The committer does not commit the transaction after this time. It must have a time zone."""
    attempt: int | None
    """Number of the execution: 1 for the first, more after each `RetryableConflict`. `reexecute` sets it."""
    retry_of: str | None
    """The uuid of the refused transaction. `reexecute` sets it."""
    will_retry: bool
    """Whether the producer executes the transaction again if it is refused RETRYABLE: then others that conflict with it
    wait for that. `reexecute` sets it.
    """
    traceparent: str | None
    """W3C trace context. By default it is that of a span below the caller's, if the application uses OpenTelemetry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """Options for a table that does not exist yet, with pylance's names and meanings; None is pylance's default."""

    enable_stable_row_ids: bool | None = None
    enable_v2_manifest_paths: bool | None = None
    data_storage_version: str | None = None

    def given(self) -> dict[str, Any]:
        """The options that were given."""
        options = {
            "enable_stable_row_ids": self.enable_stable_row_ids,
            "enable_v2_manifest_paths": self.enable_v2_manifest_paths,
            "data_storage_version": self.data_storage_version,
        }
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """How the rows are divided into files; None is pylance's default."""

    max_rows_per_file: int | None = None
    max_bytes_per_file: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            count(value, name)

    def given(self) -> dict[str, int]:
        """The options that were given."""
        options = {"max_rows_per_file": self.max_rows_per_file, "max_bytes_per_file": self.max_bytes_per_file}
        return {name: value for name, value in options.items() if value is not None}
