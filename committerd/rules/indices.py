"""What a commit does to the indices it doesn't make: which stay, and which fragments each still
covers.

An index lists the fragments that it covers; a query scans the rest. So too short a list costs time,
and too long a list gives wrong answers. Nothing here changes a message in place: an index with
another list is a copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pyroaring import BitMap, BitMap64

from committerd.errors import InvalidRequest
from committerd.format.fragment_reuse import Content
from committerd.format.index_details import (
    FRAGMENT_REUSE_INDEX,
    covered_fragments,
    encode_fragments,
    is_system_index,
    is_vector_index,
    type_name,
)
from committerd.format.messages import Field, IndexMetadata

_ADDRESS_KINDS = frozenset({"ZoneMapIndexDetails", "BloomFilterIndexDetails"})


def coverage(index: IndexMetadata) -> BitMap | None:
    """Fragment ids that an index of the table covers; None when it doesn't say."""
    return covered_fragments(index, staged=False)


def holds_addresses(index: IndexMetadata) -> bool:
    """Whether an index names rows by where they lie even in a table whose rows have stable ids.

    pylance 14.0.2: zone maps and bloom filters always, B-trees from version 1 on. A row that moves
    is lost to such an index; others find it by its id.
    """
    kind = type_name(index)
    return kind in _ADDRESS_KINDS or (kind == "BTreeIndexDetails" and index.index_version > 0)


def with_coverage(index: IndexMetadata, fragments: BitMap) -> IndexMetadata:
    copied = IndexMetadata()
    copied.CopyFrom(index)
    copied.fragment_bitmap = encode_fragments(fragments)
    return copied


def retained(indices: Sequence[IndexMetadata], schema: Iterable[Field], fragment_ids: BitMap64) -> list[IndexMetadata]:
    """The indices that are of use with this schema and these fragments.

    Dropped are those on a field that is gone and, of each name, segments that cover nothing, but
    for the oldest of an index that would vanish otherwise; a vector index without anything covered
    vanishes. Lance: transaction.rs, retain_relevant_indices.
    """
    fields = {field.id for field in schema}
    usable = [index for index in indices if is_system_index(index) or fields.issuperset(index.fields)]
    segments: dict[str, list[IndexMetadata]] = {}
    for index in usable:
        if index.name != FRAGMENT_REUSE_INDEX:
            segments.setdefault(index.name, []).append(index)
    kept = {id(index) for group in segments.values() for index in _useful(group, fragment_ids)}
    return [index for index in usable if index.name == FRAGMENT_REUSE_INDEX or id(index) in kept]


def without_updated_fields(
    indices: Iterable[IndexMetadata], fragment_ids: Collection[int], fields: Collection[int]
) -> list[IndexMetadata]:
    """Indices on one of these fields no longer cover these fragments: the field was rewritten
    there.

    Lance: transaction.rs, prune_updated_fields_from_indices.
    """
    gone = BitMap(fragment_ids)
    pruned = []
    for index in indices:
        covered = coverage(index) if set(fields) & set(index.fields) else None
        pruned.append(index if covered is None or not covered & gone else with_coverage(index, covered - gone))
    return pruned


def with_moved_rows(
    indices: Iterable[IndexMetadata],
    *,
    moved_to: Collection[int],
    moved_from: Collection[int],
    changed_fields: Collection[int],
) -> list[IndexMetadata]:
    """Indices on none of the changed fields still cover rows that an update moved, if rows keep
    their ids.

    Only when they covered all fragments that the rows came from. Lance: transaction.rs,
    register_pure_rewrite_rows_update_frags_in_indices.
    """
    if not moved_to:
        return list(indices)
    origin = BitMap(moved_from)
    extended = []
    for index in indices:
        covered = coverage(index) if not set(changed_fields) & set(index.fields) else None
        extended.append(
            with_coverage(index, covered | BitMap(moved_to))
            if covered is not None and not is_system_index(index) and not holds_addresses(index) and origin <= covered
            else index
        )
    return extended


def rewritten_coverage(
    covered: BitMap, groups: Iterable[tuple[Collection[int], Collection[int]]], *, name: str
) -> BitMap:
    """What an index covers after fragments were rewritten; `groups` are pairs of old and new ids.

    Lance: transaction.rs, recalculate_fragment_bitmap. Raises `InvalidRequest` (`index_split`) for
    a group of which only a part was covered: its new fragments would be covered in part, which
    can't be said.
    """
    result = BitMap(covered)
    for old, new in groups:
        inside = [fragment in covered for fragment in old]
        if any(inside) and not all(inside):
            raise InvalidRequest(
                f"index {name!r} covers only some of the fragments {sorted(old)} of one rewrite "
                "group; rewrite covered and uncovered fragments in groups of their own",
                code="index_split",
            )
        if any(inside):
            result -= BitMap(old)
            result |= BitMap(new)
    return result


def reuse_applied(indices: Iterable[IndexMetadata], reuse: Content) -> list[IndexMetadata]:
    """Indices as readers take them: for rewritten fragments they cover those that replaced them.

    Lance: index.rs, load_indices, does this to every index it reads, and writes the result with its
    next commit. It fails on a group that is covered in part; here the covered part is taken out, so
    that all of it is scanned.
    """
    groups = [
        (
            BitMap(one.id for one in group.old_fragments),
            BitMap(one.id for one in group.new_fragments),
        )
        for version in reuse.versions
        for group in version.groups
    ]
    applied = []
    for index in indices:
        covered = None if is_system_index(index) else coverage(index)
        if covered is None:
            applied.append(index)
            continue
        result = BitMap(covered)
        for old, new in groups:
            if old & result:
                whole = old <= result
                result -= old
                if whole:
                    result |= new
        applied.append(index if result == covered else with_coverage(index, result))
    return applied


def _useful(segments: Sequence[IndexMetadata], fragment_ids: BitMap64) -> Sequence[IndexMetadata]:
    """Of the segments of one index, those to keep."""
    covering = [index for index in segments if any(fragment in fragment_ids for fragment in coverage(index) or ())]
    if covering:
        return covering
    if len(segments) == 1:
        return [] if is_vector_index(segments[0]) else segments
    oldest = min(segments, key=lambda index: index.dataset_version)
    return [] if is_vector_index(oldest) else [oldest]
