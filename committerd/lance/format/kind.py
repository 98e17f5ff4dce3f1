"""The 15 operations of Lance 4.0.0."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """The operation of a transaction; the value is its name in the transaction's oneof."""

    APPEND = "append"
    DELETE = "delete"
    UPDATE = "update"
    OVERWRITE = "overwrite"
    CREATE_INDEX = "create_index"
    REWRITE = "rewrite"
    MERGE = "merge"
    RESTORE = "restore"
    RESERVE_FRAGMENTS = "reserve_fragments"
    PROJECT = "project"
    UPDATE_CONFIG = "update_config"
    DATA_REPLACEMENT = "data_replacement"
    UPDATE_MEM_WAL_STATE = "update_mem_wal_state"
    CLONE = "clone"
    UPDATE_BASES = "update_bases"
