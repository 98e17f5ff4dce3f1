"""Ours, changed so that it applies on top of theirs.

Only deletions need bytes: `plan_deletions` says which deletion files, the caller reads them,
`merge_deletions` gives the rebased transaction and the files to write, or the rows that both sides
changed. What an index has to take in is known already (`rebase_indices`).

A transaction does not say which rows it affects. They are derived: the rows that its deletion file
has and that of the same fragment at the read version has not. pylance knows them in memory and
retries where it has only the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from itertools import islice

from pyroaring import BitMap

from committerd.format.deletion_file import encode_bitmap
from committerd.format.fragment_reuse import Content
from committerd.format.index_details import (
    FRAGMENT_REUSE_INDEX,
    MEM_WAL_INDEX,
    encode_fragments,
    pack_details,
    unpack_details,
)
from committerd.format.messages import (
    UUID,
    DataFragment,
    DeletionFile,
    FragmentReuseIndexDetails,
    Manifest,
    MemWalIndexDetails,
    MergedGeneration,
    Transaction,
)
from committerd.format.paths import deletion_key, index_prefix
from committerd.rules.build_indices import raise_generations
from committerd.rules.footprint import Footprint
from committerd.rules.indices import without_updated_fields

# Lance: frag_reuse.rs: larger content goes into a file of its own.
REUSE_INLINE_BYTES_MAX = 204_800
REUSE_FILE = "details.binpb"

_ADDRESSES_TOLD_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionMerge:
    """One fragment that both sides deleted rows of, in its three states. Each may lack a
    deletion file.
    """

    read: DataFragment
    ours: DataFragment
    latest: DataFragment


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletions:
    """Deleted row offsets of the three states of one fragment."""

    read: BitMap
    ours: BitMap
    latest: BitMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """The transaction as it can be committed, and what must be written before."""

    transaction: Transaction
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Bodies by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowConflict:
    """Both sides changed the same rows, or it can't be known."""

    message: str


def plan_deletions(transaction: Transaction, read: Manifest | None, latest: Manifest) -> Sequence[DeletionMerge]:
    """The fragments of a Delete or Update whose deletions changed since the read version."""
    ours = {fragment.id: fragment for fragment in _updated(transaction)}
    if read is None or not ours:
        return ()
    then = {fragment.id: fragment for fragment in read.fragments if fragment.id in ours}
    now = {fragment.id: fragment for fragment in latest.fragments if fragment.id in ours}
    return [
        DeletionMerge(read=then[one], ours=ours[one], latest=now[one])
        for one in sorted(then.keys() & now.keys())
        if then[one].deletion_file != now[one].deletion_file
    ]


def merge_deletions(
    transaction: Transaction,
    merges: Sequence[tuple[DeletionMerge, Deletions]],
    *,
    latest_version: int,
    file_ids: Iterator[int],
) -> Rebased | RowConflict:
    """A Delete or Update with their deletions and ours in every fragment.

    The new files are bitmaps, named after `latest_version` and one of `file_ids` each. A fragment
    of which no row is left is removed and gets none. Lance: conflict_resolver.rs,
    finish_delete_update.
    """
    rebased = Transaction()
    rebased.CopyFrom(transaction)
    rebased.read_version = latest_version
    updated = {fragment.id: fragment for fragment in _updated(rebased)}
    files: dict[str, bytes] = {}
    clashes, told = 0, list[str]()
    for merge, deletions in merges:
        fragment_id = merge.ours.id
        if not deletions.read <= deletions.ours:
            return RowConflict(
                message=f"fragment {fragment_id} has rows again that were deleted at the read version, so what it "
                "deletes can't be told"
            )
        affected = deletions.ours - deletions.read
        both = affected & deletions.latest
        clashes += len(both)
        told += (str(fragment_id << 32 | row) for row in islice(both, _ADDRESSES_TOLD_MAX - len(told)))
        merged = affected | deletions.latest
        if len(merged) >= merge.latest.physical_rows:
            # It stays among the changed ones too, as in Lance: being removed counts.
            _removed(rebased).append(fragment_id)
        elif merged == deletions.latest:
            updated[fragment_id].deletion_file.CopyFrom(merge.latest.deletion_file)
        else:
            file = DeletionFile(
                file_type=DeletionFile.BITMAP,
                read_version=latest_version,
                id=next(file_ids),
                num_deleted_rows=len(merged),
            )
            updated[fragment_id].deletion_file.CopyFrom(file)
            files[deletion_key(fragment_id, file, staged=True)] = encode_bitmap(merged)
    if clashes:
        more = "" if clashes <= len(told) else f" and {clashes - len(told)} more"
        return RowConflict(message=f"both modified rows at addresses [{', '.join(told)}]{more}")
    return Rebased(transaction=rebased, files=files)


def rebase_indices(transaction: Transaction, theirs: Iterable[Footprint]) -> Transaction:
    """A CreateIndex whose indices cover only what was not rewritten since, and whose MemWAL index
    knows their merges.

    `theirs` in ascending order. Lance 14: conflict_resolver.rs, check_create_index_txn and
    finish_create_index.
    """
    rebased = Transaction()
    rebased.CopyFrom(transaction)
    create = rebased.create_index
    for one in theirs:
        if one.fields_modified:
            pruned = without_updated_fields(create.new_indices, one.files.keys(), one.fields_modified)
            del create.new_indices[:]
            create.new_indices.extend(pruned)
        for index in create.new_indices:
            if index.name == MEM_WAL_INDEX and one.generations:
                details = unpack_details(index, MemWalIndexDetails, staged=True)
                raise_generations(
                    details,
                    [
                        MergedGeneration(region_id=UUID(uuid=region), generation=generation)
                        for region, generation in one.generations
                    ],
                )
                index.index_details.CopyFrom(pack_details(details))
    return rebased


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseContents:
    """What the fragment reuse index says: ours, at our read version, and now."""

    ours: Content
    read: Content
    latest: Content


def rebase_reuse(
    transaction: Transaction, contents: ReuseContents, *, latest_version: int, index_uuid: bytes
) -> Rebased:
    """A CreateIndex of the fragment reuse index with the entries that theirs added.

    The index becomes a new one, `index_uuid`. Lance: conflict_resolver.rs, finish_create_index.
    """
    content = Content()
    content.CopyFrom(contents.ours)
    known = [entry.SerializeToString(deterministic=True) for entry in contents.read.versions]
    content.versions.extend(
        entry for entry in contents.latest.versions if entry.SerializeToString(deterministic=True) not in known
    )
    rebased = Transaction()
    rebased.CopyFrom(transaction)
    index = next(one for one in rebased.create_index.new_indices if one.name == FRAGMENT_REUSE_INDEX)
    index.uuid.uuid = index_uuid
    index.dataset_version = latest_version
    index.fragment_bitmap = encode_fragments(
        BitMap(digest.id for entry in content.versions for group in entry.groups for digest in group.new_fragments)
    )
    details = FragmentReuseIndexDetails()
    body = content.SerializeToString(deterministic=True)
    if len(body) <= REUSE_INLINE_BYTES_MAX:
        details.inline.CopyFrom(content)
        files = {}
    else:
        details.external.path = REUSE_FILE
        details.external.size = len(body)
        files = {index_prefix(index_uuid) + REUSE_FILE: body}
    index.index_details.CopyFrom(pack_details(details))
    return Rebased(transaction=rebased, files=files)


def _updated(transaction: Transaction) -> Iterable[DataFragment]:
    match transaction.WhichOneof("operation"):
        case "delete":
            return transaction.delete.updated_fragments
        case "update":
            return transaction.update.updated_fragments
        case _:
            return ()


def _removed(transaction: Transaction) -> MutableSequence[int]:
    """Its list of removed fragments, to be added to."""
    if transaction.HasField("delete"):
        return transaction.delete.deleted_fragment_ids
    return transaction.update.removed_fragment_ids
