"""The error for changes that can't be staged."""

from __future__ import annotations

from committerd_client.errors import ClientError


class StagingError(ClientError, ValueError):
    """The change can't be turned into a transaction. Nothing was sent; the message says what to do instead.

    Codes: `blob_columns`, `branch`, `column`, `detached_version`, `fragment`, `fragments_reserved`, `index`,
    `key_type`, `keys_missing`, `legacy_files`, `nothing_to_stage`, `null_keys`, `predicate_not_deterministic`,
    `reserved_property`, `schema_differs`, `table_unknown_fields`, `unknown_to_committerd`.
    """
