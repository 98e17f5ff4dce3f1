"""The indices of the next version: which ones stay, and which fragments each still covers.

An index lists the fragments that it covers, and a query scans the others. So a list that is too short costs time, and
one that is too long gives wrong results. Nothing here changes a message in place: an index with another list is a copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum

from pyroaring import BitMap, BitMap64

from committerd.errors import InvalidRequest
from committerd.lance.format.fragment_reuse import Content
from committerd.lance.versions.schema import with_relatives
from committerd_common.index_details import (
    FRAGMENT_REUSE_INDEX,
    covered_fragments,
    encode_fragments,
    is_system_index,
    is_vector_index,
    narrow,
    type_name,
)
from committerd_common.messages import Field, IndexMetadata

_ADDRESS_KINDS = frozenset({"ZoneMapIndexDetails", "BloomFilterIndexDetails", "FMIndexDetails"})


class KeepsEmpty(Enum):
    """The indices that stay in a table even if they cover none of its fragments."""

    ALL = "all"
    SCALAR = "scalar"
    """Scalar indices stay; vector indices that cover nothing are dropped."""


def coverage(index: IndexMetadata) -> BitMap | None:
    """The ids of the fragments that an index of the table covers; None if it has no list of them."""
    return covered_fragments(index, staged=False)


def require_distinct_indices(where: str, uuids: Sequence[bytes]) -> None:
    """Check that no index is listed twice in field `where`. Raises `InvalidRequest` (`duplicate_index`)."""
    if len(set(uuids)) != len(uuids):
        raise InvalidRequest(f"{where} lists the same index twice", code="duplicate_index")


def holds_addresses(index: IndexMetadata) -> bool:
    """Whether an index finds rows by their addresses, even in a table with stable row ids.

    Lance 14: format/index.rs, results_are_row_addrs: zone maps, bloom filters and FM indices always, B-trees from
    version 1 on. Such an index no longer finds a row that moves; other indices find it by its id.
    """
    kind = type_name(index)
    return kind in _ADDRESS_KINDS or (kind == "BTreeIndexDetails" and index.index_version > 0)


def with_coverage(index: IndexMetadata, fragments: BitMap) -> IndexMetadata:
    """A copy of the index that covers these fragments."""
    copied = IndexMetadata()
    copied.CopyFrom(index)
    copied.fragment_bitmap = encode_fragments(fragments)
    return copied


def retained(
    indices: Sequence[IndexMetadata], schema: Iterable[Field], fragment_ids: BitMap64, *, keeps: KeepsEmpty
) -> list[IndexMetadata]:
    """The indices that are useful with this schema and these fragments.

    An index on a dropped field is dropped. Of several segments of one name, those that cover nothing are dropped; if
    none covers anything, the oldest stays, so that the table still shows which index it should have. In tables of an
    old Lance, a vector index that covers nothing is dropped.

    Lance 14: index_maintenance.rs, retain_relevant_indices; 4.0.0: transaction.rs.
    """
    fields = {field.id for field in schema}
    usable = [index for index in indices if is_system_index(index) or fields.issuperset(index.fields)]
    segments: dict[str, list[IndexMetadata]] = {}
    for index in usable:
        if index.name != FRAGMENT_REUSE_INDEX:
            segments.setdefault(index.name, []).append(index)
    kept = {id(index) for group in segments.values() for index in _useful(group, fragment_ids, keeps)}
    return [index for index in usable if index.name == FRAGMENT_REUSE_INDEX or id(index) in kept]


def without_updated_fields(
    indices: Iterable[IndexMetadata], fragment_ids: Collection[int], fields: Iterable[int], schema: Iterable[Field]
) -> list[IndexMetadata]:
    """The indices; those on one of `fields` of the schema no longer cover the fragments in `fragment_ids`, in which
    these fields were rewritten.

    An index on a list or struct is on the fields in it too, and the other way round. Lance (index_maintenance.rs,
    prune_updated_fields_from_indices) compares the ids of the fields alone: its update of a list column names the field
    of the elements, and an index on the list goes on giving the old values.
    """
    if not fields:
        return list(indices)
    changed = with_relatives(fields, schema)
    gone = BitMap(fragment_ids)
    pruned = []
    for index in indices:
        covered = coverage(index) if not changed.isdisjoint(index.fields) else None
        pruned.append(index if covered is None or not covered & gone else with_coverage(index, covered - gone))
    return pruned


def with_moved_rows(
    indices: Iterable[IndexMetadata],
    *,
    moved_to: Collection[int],
    moved_from: Collection[int],
    changed_fields: Collection[int],
) -> list[IndexMetadata]:
    """The indices; those on none of the changed fields also cover the fragments to which rows moved.

    This is for rows that keep their ids. An index is extended only if it covered all `moved_from`. Lance:
    transaction.rs, register_pure_rewrite_rows_update_frags_in_indices.
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
    """The fragments that an index covers after a rewrite; `groups` are pairs of old and new fragment ids.

    Lance: transaction.rs, recalculate_fragment_bitmap. Raises `InvalidRequest` (`index_split`) if only a part of a
    group was covered, because the list can't express that a new fragment is covered in part.
    """
    result = BitMap(covered)
    for old, new in groups:
        inside = [fragment in covered for fragment in old]
        if any(inside) and not all(inside):
            raise InvalidRequest(
                f"index {name!r} covers only some of the fragments {sorted(old)} of a rewrite "
                "group; rewrite covered and uncovered fragments in separate groups",
                code="index_split",
            )
        if any(inside):
            result -= BitMap(old)
            result |= BitMap(new)
    return result


def reuse_applied(indices: Iterable[IndexMetadata], reuse: Content) -> list[IndexMetadata]:
    """The indices as readers interpret them: each covers the new fragments instead of the old ones that they replaced.

    Lance (index.rs, load_indices) does this for every index that it reads, and writes the result with its next commit.
    It fails for a group that is covered in part. committerd removes the covered part, so queries scan the whole group.
    """
    groups = [
        (
            BitMap(one.id for one in group.old_fragments),
            BitMap(one.id for one in group.new_fragments),
        )
        for version in reuse.versions
        for group in version.groups
    ]
    rewritten = BitMap().union(*(old for old, _ in groups))
    applied = []
    for index in indices:
        covered = None if is_system_index(index) else coverage(index)
        if covered is None or not covered.intersect(rewritten):
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


def _useful(segments: Sequence[IndexMetadata], fragment_ids: BitMap64, keeps: KeepsEmpty) -> Sequence[IndexMetadata]:
    """The useful segments of one index."""
    if keeps is KeepsEmpty.SCALAR:
        covering = [index for index in segments if _covers_any(index, fragment_ids)]
        oldest = min(segments, key=lambda index: index.dataset_version)
        return covering or ([] if is_vector_index(oldest) else [oldest])
    # A segment without a list may cover anything, so it stays.
    unknown = [index for index in segments if coverage(index) is None]
    known = [index for index in segments if coverage(index) is not None]
    covering = [index for index in known if _covers_any(index, fragment_ids)]
    if not covering and known:
        covering = [min(known, key=_age)]
    return [*unknown, *covering]


def _covers_any(index: IndexMetadata, fragment_ids: BitMap64) -> bool:
    covered = coverage(index)
    return covered is not None and covered.intersect(narrow(fragment_ids))


def _age(index: IndexMetadata) -> tuple[bool, int, int]:
    """A sort key, lower for an older index. `dataset_version` alone does not suffice: merges raise and lower it."""
    return not index.HasField("created_at"), index.created_at, index.dataset_version
