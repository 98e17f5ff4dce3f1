"""The MemWAL index: the highest generation of each region that is merged into the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyroaring import BitMap

from committerd.errors import CorruptTable, InvalidRequest
from committerd.lance.checks.uuids import is_uuid
from committerd.lance.format.timestamps import to_ms
from committerd.lance.versions.draft import Draft
from committerd.lance.versions.indices import coverage, reuse_applied
from committerd_common.index_details import (
    MEM_WAL_INDEX,
    encode_fragments,
    is_system_index,
    narrow,
    pack_details,
    unpack_details,
)
from committerd_common.messages import UUID, IndexCatchupProgress, IndexMetadata, MemWalIndexDetails, MergedGeneration


def touched_generations(merged: Iterable[MergedGeneration]) -> tuple[tuple[bytes, int], ...]:
    """The (region id, generation) of each, as in `Footprint.generations`."""
    return tuple((one.region_id.uuid, one.generation) for one in merged)


def require_regions(merged: Iterable[MergedGeneration]) -> None:
    """Check that each names its region. Raises `InvalidRequest` (`region_id`)."""
    if not all(is_uuid(one.region_id.uuid) for one in merged):
        # Lance 4.0.0 can't open a version whose transaction has another.
        raise InvalidRequest("each of merged_generations needs a region_id of 16 bytes", code="region_id")


def merge_generations(draft: Draft, merged: Iterable[MergedGeneration]) -> None:
    """Record the merged generations in the draft's MemWAL index.

    In Lance 14 the table has the index, each region is named once, and its generation is above the recorded one:
    mem_wal.rs, update_mem_wal_index_compacted_sstables. Raises `InvalidRequest` (`region_id`, `index_details`).

    In a table that an old Lance writes, the highest generation of each region counts, and a table without the index
    gets one: 4.0.0, mem_wal.rs, update_mem_wal_index_merged_generations.
    """
    merged = list(merged)
    if not merged:
        return
    before = [index for index in draft.indices if index.name == MEM_WAL_INDEX]
    details = MemWalIndexDetails()
    if before:
        details.CopyFrom(unpack_details(before[-1], MemWalIndexDetails))
    if not draft.by_old_lance:
        _require_higher(merged, details if before else None)
    raise_generations(details, merged)
    _replace(draft, details)


def _require_higher(merged: Sequence[MergedGeneration], recorded: MemWalIndexDetails | None) -> None:
    if recorded is None:
        raise InvalidRequest(
            f"it names merged_generations, and the table has no index {MEM_WAL_INDEX}; initialise its MemWAL first",
            code="index_details",
        )
    if len({one.region_id.uuid for one in merged}) != len(merged):
        raise InvalidRequest("merged_generations name a region twice; name its highest generation", code="region_id")
    known = {one.region_id.uuid: one.generation for one in recorded.merged_generations}
    for one in merged:
        if one.generation <= known.get(one.region_id.uuid, -1):
            raise InvalidRequest(
                f"merged_generations name generation {one.generation} of region {one.region_id.uuid.hex()}, and the "
                f"table has merged generation {known[one.region_id.uuid]}; merge only what comes after it",
                code="index_details",
            )


def _replace(draft: Draft, details: MemWalIndexDetails) -> None:
    """Put the details into the draft's MemWAL index, in its place in the list; a table gets one at the end."""
    made = IndexMetadata(
        uuid=UUID(uuid=draft.given.index_uuid),
        name=MEM_WAL_INDEX,
        dataset_version=draft.version,
        index_details=pack_details(details),
        index_version=0,
        created_at=to_ms(draft.manifest.timestamp),
    )
    places = [place for place, index in enumerate(draft.indices) if index.name == MEM_WAL_INDEX]
    others = [index for index in draft.indices if index.name != MEM_WAL_INDEX]
    others.insert(places[0] if places else len(others), made)
    draft.indices = others


def follow_indices(draft: Draft) -> None:
    """Say anew how far each index has caught up with what is merged, now that the draft's indices are final.

    The logs of a generation may be deleted once every index has its rows. An index that covers every fragment has the
    rows of all generations that were merged before; one that stays as it is keeps what it had; any other has caught up
    with nothing. Lance 14: manifest_build.rs, apply_mem_wal_index_coverage. It looks at the fragments of the
    transaction's read version, and this function at those of the version before the draft, which have all rows of that
    one. 4.0.0 does not do it.
    """
    found = [index for index in draft.indices if index.name == MEM_WAL_INDEX]
    if not found or draft.current is None or draft.by_old_lance:
        return
    had = [index for index in draft.current.indices if index.name == MEM_WAL_INDEX]
    try:
        details = unpack_details(found[0], MemWalIndexDetails)
        before = unpack_details(had[0], MemWalIndexDetails).merged_generations if had else []
    except CorruptTable:
        return  # no reader of the table understands it, so it says nothing
    if not had or not (details.merged_generations or details.index_catchup):
        return
    merged_before = {one.region_id.uuid: one.generation for one in before}
    as_read: Iterable[IndexMetadata] = draft.current.indices
    if draft.given.reuse is not None:
        as_read = reuse_applied(as_read, draft.given.reuse)
    segments_before, live = _segments(as_read), narrow(draft.current.fragments.facts.ids)
    known = {progress.index_name: progress for progress in details.index_catchup}
    rebuilt = []
    for name, segments in sorted(_segments(draft.indices).items()):
        stays = known.get(name) if segments_before.get(name) == segments else None
        earlier = {one.region_id.uuid: one.generation for one in stays.caught_up_generations} if stays else {}
        covers_all = bool(live) and _covers(segments, live)
        progress = IndexCatchupProgress(index_name=name)
        for one in details.merged_generations:
            region = one.region_id.uuid
            proven = merged_before.get(region, 0) if covers_all else 0
            reached = min(max(earlier.get(region, 0), proven), one.generation)
            progress.caught_up_generations.add(region_id=one.region_id, generation=reached)
        if any(one.generation for one in progress.caught_up_generations):
            rebuilt.append(progress)
    if rebuilt != sorted(details.index_catchup, key=lambda progress: progress.index_name):
        del details.index_catchup[:]
        details.index_catchup.extend(rebuilt)
        _replace(draft, details)


def _segments(indices: Iterable[IndexMetadata]) -> dict[str, list[tuple[bytes, bytes]]]:
    """The segments of each index that is no system index, as (uuid, list of fragments), in the order of their uuids."""
    segments: dict[str, list[tuple[bytes, bytes]]] = {}
    for index in indices:
        if not is_system_index(index):
            covered = coverage(index)
            fragments = b"" if covered is None else encode_fragments(covered)
            segments.setdefault(index.name, []).append((index.uuid.uuid, fragments))
    return {name: sorted(found) for name, found in segments.items()}


def _covers(segments: Iterable[tuple[bytes, bytes]], fragments: BitMap) -> bool:
    """Whether the segments cover all these fragments together; no, if one does not say what it covers."""
    lists = [encoded for _, encoded in segments]
    return all(lists) and fragments <= BitMap().union(*map(BitMap.deserialize, lists))


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
