"""Unions of footprints, with which a Delete or Update is compared with many versions at once.

An upsert that was planned long ago is compared with each version since. Most of these are Appends, Deletes and Updates
that touch other rows and keys. A Delete or Update that has no conflict with the union of such versions has no conflict
with any of them. If it has a conflict with the union, it is compared with each version, because only that shows with
which version it has one, and whether it can be rebased.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.conflicts.grid import Unreadable
from committerd.lance.conflicts.key_filter import KeyFilter, KeyHashes
from committerd.lance.format.kind import Kind

COMPARED_WITH_UNIONS = frozenset({Kind.DELETE, Kind.UPDATE})
"""The operations of ours that may be compared with a union."""
_UNITED = frozenset({Kind.APPEND, Kind.DELETE, Kind.UPDATE})
"""The operations of theirs that a union may have."""
UNION_SIZE_MAX = 250_000
"""Maximum number of keys and fragments in a union: to sort so many keys takes 30 ms."""


def union(versions: Iterable[Footprint | Unreadable]) -> Sequence[Footprint] | None:
    """Return a few footprints that stand for all versions.

    A Delete or Update that has no conflict with any of these footprints has no conflict with any version. There is one
    footprint for each operation and its key columns, and for Updates that do and don't say which fields they change.

    None if a version can't be part of a union: the version has another operation than Append, Delete or Update, it
    merges MemWAL generations, or its key filter is a Bloom filter. (A union of Bloom filters soon seems to have any
    key.) Also None for more than `UNION_SIZE_MAX` keys and fragments.
    """
    alike, size = dict[object, list[Footprint]](), 0
    for one in versions:
        if isinstance(one, Unreadable) or one.kind not in _UNITED or one.generations:
            return None
        keys = one.key_filter
        if keys is not None:
            if keys.exact is None:
                return None
            size += len(keys.exact)
        size += len(one.fragments)
        columns = keys.field_ids if keys is not None else None
        alike.setdefault((one.kind, columns, one.changed_fields is None), []).append(one)
    return [_united(some) for some in alike.values()] if size <= UNION_SIZE_MAX else None


def _united(some: Sequence[Footprint]) -> Footprint:
    """The union of footprints of one operation. All of them have keys of the same columns, or none has keys; all say
    which fields they change, or none does.
    """
    like, fragments = some[0], frozenset[int]().union(*(one.fragments for one in some))
    keys, changed = like.key_filter, like.changed_fields
    if keys is not None:
        hashes = [one.key_filter.exact or () for one in some if one.key_filter is not None]
        keys = KeyFilter(field_ids=keys.field_ids, exact=KeyHashes(chain.from_iterable(hashes)))
    if changed is not None:
        changed = changed.union(*(one.changed_fields or () for one in some))
    return Footprint(
        kind=like.kind,
        fragments=fragments,
        removed=fragments,  # so that a change of any of them is a conflict, whatever the files of the fragment are
        key_filter=keys,
        changed_fields=changed,
    )
