"""UpdateMemWalState: records which generations of the MemWAL are merged into the table."""

from __future__ import annotations

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.operations.operation import Operation, ScalesWith
from committerd.lance.operations.permissions import Permissions
from committerd.lance.versions.draft import Draft, finish
from committerd.lance.versions.mem_wal import merge_generations, require_regions, touched_generations
from committerd_common.messages import Transaction


def _validate(transaction: Transaction, allowed: Permissions, key_bytes_max: int) -> None:
    require_regions(transaction.update_mem_wal_state.merged_generations)


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    merged = transaction.update_mem_wal_state.merged_generations
    return Footprint(kind=Kind.UPDATE_MEM_WAL_STATE, generations=touched_generations(merged))


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: transaction.rs, build_manifest, UpdateMemWalState.

    The fragments stay. Lance 4.0.0 makes a version without fragments, which Lance later fixed as a bug.
    """
    merge_generations(draft, transaction.update_mem_wal_state.merged_generations)
    finish(draft)


UPDATE_MEM_WAL_STATE = Operation(
    kind=Kind.UPDATE_MEM_WAL_STATE,
    scales_with=ScalesWith.MESSAGE,
    validate=_validate,
    footprint=_footprint,
    build=_build,
)
