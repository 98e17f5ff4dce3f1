"""The MemWAL index: the highest generation of each region that is merged into the table."""

from __future__ import annotations

from collections.abc import Iterable

from committerd.errors import InvalidRequest
from committerd.lance.checks.uuids import is_uuid
from committerd.lance.format.timestamps import to_ms
from committerd.lance.versions.draft import Draft
from committerd_common.index_details import MEM_WAL_INDEX, pack_details, unpack_details
from committerd_common.messages import UUID, IndexMetadata, MemWalIndexDetails, MergedGeneration


def touched_generations(merged: Iterable[MergedGeneration]) -> tuple[tuple[bytes, int], ...]:
    """The (region id, generation) of each, as in `Footprint.generations`."""
    return tuple((one.region_id.uuid, one.generation) for one in merged)


def require_regions(merged: Iterable[MergedGeneration]) -> None:
    """Check that each names its region. Raises `InvalidRequest` (`region_id`)."""
    if not all(is_uuid(one.region_id.uuid) for one in merged):
        # Lance 4.0.0 can't open a version whose transaction has another.
        raise InvalidRequest("each of merged_generations needs a region_id of 16 bytes", code="region_id")


def merge_generations(draft: Draft, merged: Iterable[MergedGeneration]) -> None:
    """Record the merged generations in the draft's MemWAL index; for each region the highest generation counts.

    A table without the index gets one. Lance: mem_wal.rs, update_mem_wal_index_merged_generations.
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
            created_at=to_ms(draft.manifest.timestamp),
        ),
    ]


def raise_generations(details: MemWalIndexDetails, merged: Iterable[MergedGeneration]) -> None:
    """Add the merged generations to the details, in place; for each region the highest generation stays."""
    known = {one.region_id.uuid: one for one in details.merged_generations}
    for one in merged:
        earlier = known.get(one.region_id.uuid)
        if earlier is None:
            added = details.merged_generations.add()
            added.CopyFrom(one)
            known[one.region_id.uuid] = added
        else:
            earlier.generation = max(earlier.generation, one.generation)
