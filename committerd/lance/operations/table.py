"""The table of all operations."""

from __future__ import annotations

from functools import cache
from typing import assert_never

from committerd.lance.format.kind import Kind
from committerd.lance.operations.append import APPEND
from committerd.lance.operations.clone import CLONE
from committerd.lance.operations.create_index import CREATE_INDEX
from committerd.lance.operations.data_replacement import DATA_REPLACEMENT
from committerd.lance.operations.delete import DELETE
from committerd.lance.operations.merge import MERGE
from committerd.lance.operations.operation import Operation
from committerd.lance.operations.overwrite import OVERWRITE
from committerd.lance.operations.project import PROJECT
from committerd.lance.operations.reserve_fragments import RESERVE_FRAGMENTS
from committerd.lance.operations.restore import RESTORE
from committerd.lance.operations.rewrite import REWRITE
from committerd.lance.operations.update import UPDATE
from committerd.lance.operations.update_bases import UPDATE_BASES
from committerd.lance.operations.update_config import UPDATE_CONFIG
from committerd.lance.operations.update_mem_wal_state import UPDATE_MEM_WAL_STATE


@cache
def operation(kind: Kind) -> Operation:
    """The record of an operation. An operation without a case here is a type error."""
    match kind:
        case Kind.APPEND:
            return APPEND
        case Kind.DELETE:
            return DELETE
        case Kind.UPDATE:
            return UPDATE
        case Kind.OVERWRITE:
            return OVERWRITE
        case Kind.CREATE_INDEX:
            return CREATE_INDEX
        case Kind.REWRITE:
            return REWRITE
        case Kind.MERGE:
            return MERGE
        case Kind.RESTORE:
            return RESTORE
        case Kind.RESERVE_FRAGMENTS:
            return RESERVE_FRAGMENTS
        case Kind.PROJECT:
            return PROJECT
        case Kind.UPDATE_CONFIG:
            return UPDATE_CONFIG
        case Kind.DATA_REPLACEMENT:
            return DATA_REPLACEMENT
        case Kind.UPDATE_MEM_WAL_STATE:
            return UPDATE_MEM_WAL_STATE
        case Kind.CLONE:
            return CLONE
        case Kind.UPDATE_BASES:
            return UPDATE_BASES
        case _:
            assert_never(kind)
