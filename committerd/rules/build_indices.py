"""How CreateIndex and MemWAL progress make the next version."""

from __future__ import annotations

from collections.abc import Iterable

from committerd.format.index_details import (
    MEM_WAL_INDEX,
    SYSTEM_INDICES,
    pack_details,
    unpack_details,
)
from committerd.format.messages import (
    UUID,
    IndexMetadata,
    MemWalIndexDetails,
    MergedGeneration,
    Transaction,
)
from committerd.rules.draft import Draft, finish


def create_index(draft: Draft, operation: Transaction.CreateIndex) -> None:
    """Lance: transaction.rs, build_manifest, CreateIndex. Segments of one name that it does not
    list stay.

    Of a system index there is one: a new one takes the place of what the table has
    (conflict_resolver.rs, finish_create_index).
    """
    listed = {index.uuid.uuid for index in (*operation.removed_indices, *operation.new_indices)}
    made = {index.name for index in operation.new_indices} & SYSTEM_INDICES
    draft.indices = [
        *(i for i in draft.indices if i.uuid.uuid not in listed and i.name not in made),
        *operation.new_indices,
    ]
    finish(draft)


def update_mem_wal_state(draft: Draft, operation: Transaction.UpdateMemWalState) -> None:
    """Lance: transaction.rs, build_manifest, UpdateMemWalState.

    Fragments stay. Lance 4.0.0 publishes a version without any; upstream calls that a bug since.
    """
    merge_generations(draft, operation.merged_generations)
    finish(draft)


def merge_generations(draft: Draft, merged: Iterable[MergedGeneration]) -> None:
    """Note in the MemWAL index what was merged: the highest generation of each region counts.

    The index is made when there is none. Lance: mem_wal.rs,
    update_mem_wal_index_merged_generations.
    """
    merged = list(merged)
    if not merged:
        return
    before = [index for index in draft.indices if index.name == MEM_WAL_INDEX]
    details = MemWalIndexDetails()
    if before:
        details.CopyFrom(unpack_details(before[-1], MemWalIndexDetails))
    raise_generations(details, merged)
    draft.indices = [
        *(index for index in draft.indices if index.name != MEM_WAL_INDEX),
        IndexMetadata(
            uuid=UUID(uuid=draft.given.index_uuid),
            name=MEM_WAL_INDEX,
            dataset_version=draft.version,
            index_details=pack_details(details),
            index_version=0,
            created_at=draft.manifest.timestamp.ToMilliseconds(),
        ),
    ]


def raise_generations(details: MemWalIndexDetails, merged: Iterable[MergedGeneration]) -> None:
    """Take in what was merged, in place: of each region the higher generation stays."""
    known = {one.region_id.uuid: one for one in details.merged_generations}
    for one in merged:
        earlier = known.get(one.region_id.uuid)
        if earlier is None:
            added = details.merged_generations.add()
            added.CopyFrom(one)
            known[one.region_id.uuid] = added
        else:
            earlier.generation = max(earlier.generation, one.generation)
