"""CreateIndex: indices that are added, removed or replaced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from pyroaring import BitMap, BitMap64, FrozenBitMap

from committerd.errors import InvalidRequest
from committerd.lance.checks.file_paths import require_index_path
from committerd.lance.checks.numbers import require_in_bounds
from committerd.lance.checks.texts import require_name
from committerd.lance.checks.uuids import is_uuid
from committerd.lance.conflicts.footprint import Footprint, IndexFootprint
from committerd.lance.format.bounds import FRAGMENTS_NAMED_MAX
from committerd.lance.format.fragment_reuse import Content
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.wording import listed
from committerd.lance.operations.operation import Input, Operation, ScalesWith, StagedIndexFile
from committerd.lance.operations.permissions import Permissions
from committerd.lance.operations.rebase import RebasedTransaction, RebaseFacts, ReuseContents, RowConflict, copied
from committerd.lance.operations.rebase_footprints import CoverageFootprints
from committerd.lance.versions.bases import require_known_bases
from committerd.lance.versions.draft import Draft, finish
from committerd.lance.versions.indices import (
    coverage,
    holds_addresses,
    require_distinct_indices,
    with_coverage,
    without_updated_fields,
)
from committerd.lance.versions.mem_wal import raise_generations, require_regions, touched_generations
from committerd_common.index_details import (
    FRAGMENT_REUSE_INDEX,
    MEM_WAL_INDEX,
    SYSTEM_INDICES,
    covered_fragments,
    encode_fragments,
    is_system_index,
    pack_details,
    type_name,
    unpack_details,
)
from committerd_common.messages import (
    UUID,
    Field,
    FragmentReuseIndexDetails,
    IndexMetadata,
    Manifest,
    MemWalIndexDetails,
    MergedGeneration,
    Transaction,
)
from committerd_common.paths import index_prefix

# Lance: frag_reuse.rs: larger content goes into a file of its own.
REUSE_INLINE_BYTES_MAX = 204_800
REUSE_FILE = "details.binpb"


def _index_files(transaction: Transaction) -> list[StagedIndexFile]:
    return [
        StagedIndexFile(
            index.uuid.uuid, file.path, file.size_bytes, index.base_id if index.HasField("base_id") else None
        )
        for index in transaction.create_index.new_indices
        for file in index.files
    ]


def _unlisted_indices(transaction: Transaction) -> list[bytes]:
    return [
        index.uuid.uuid
        for index in transaction.create_index.new_indices
        if not index.files
        and not index.HasField("base_id")
        and not is_system_index(index)
        and covered_fragments(index, staged=True)
    ]


def _validate(transaction: Transaction, allowed: Permissions, key_bytes_max: int) -> None:
    create = transaction.create_index
    for index in (*create.new_indices, *create.removed_indices):
        _validate_index(index, key_bytes_max)
    for index in create.new_indices:
        if not is_system_index(index):
            _require_one_field(index)
    require_distinct_indices("new_indices", [index.uuid.uuid for index in create.new_indices])


def _validate_index(index: IndexMetadata, key_bytes_max: int) -> None:
    if not is_uuid(index.uuid.uuid):
        raise InvalidRequest(
            f"index {index.name!r} needs a uuid of 16 bytes, has {len(index.uuid.uuid)}", code="index_uuid"
        )
    covered = covered_fragments(index, staged=True)
    if covered is not None and len(covered) > FRAGMENTS_NAMED_MAX:
        raise InvalidRequest(
            f"index {index.name!r} says that it covers {len(covered)} fragments; at most {FRAGMENTS_NAMED_MAX} are "
            "allowed",
            code="index_bitmap",
        )
    if is_system_index(index) and (index.fields or index.covering_fields):
        # It would outlive its fields, because no Project removes it.
        raise InvalidRequest(
            f"index {index.name!r} is a system index of Lance, which has no fields; it names {list(index.fields)}",
            code="index_fields",
        )
    _require_covering_fields(index)
    if index.name == MEM_WAL_INDEX:
        _validate_mem_wal(unpack_details(index, MemWalIndexDetails, staged=True))
    if not index.name:
        raise InvalidRequest(f"the index with uuid {index.uuid.uuid.hex()} has no name; give it one", code="index_name")
    require_name("index name", index.name)
    for file in index.files:
        require_index_path(file.path, key_bytes_max)


def _require_one_field(index: IndexMetadata) -> None:
    """Check that an index is on one field, and says which fragments it covers.

    pylance commits other indices too, and from then on every compaction of the table fails: with an error, or with a
    panic if there is no field at all. Nobody knows which rows an index without a list has, so it can't follow a
    compaction.
    """
    if len(index.fields) - len(index.covering_fields) != 1:
        raise InvalidRequest(
            f"index {index.name!r} is on fields {list(index.fields)}; it must be on a single field, since Lance "
            "can't compact the table otherwise. Build an index for each column",
            code="index_fields",
        )
    if covered_fragments(index, staged=True) is None:
        raise InvalidRequest(
            f"index {index.name!r} does not say which fragments it covers (fragment_bitmap); stage what pylance gives "
            "for it",
            code="index_bitmap",
        )


def _require_covering_fields(index: IndexMetadata) -> None:
    """Check that the covering fields are the last of the fields. Lance 14: index.rs, validate_covering_fields.

    Otherwise pylance can't open the version, also if its transaction only removes the index.
    """
    covering, fields = list(index.covering_fields), list(index.fields)
    if covering and (len(set(covering)) != len(covering) or fields[1:][-len(covering) :] != covering):
        raise InvalidRequest(
            f"index {index.name!r} is on fields {fields} with covering fields {covering}; these must be the last of "
            "the fields, each once, after at least one other field",
            code="index_fields",
        )


def _validate_mem_wal(details: MemWalIndexDetails) -> None:
    require_in_bounds(f"index {MEM_WAL_INDEX!r}", details)
    require_regions(details.merged_generations)
    for progress in details.index_catchup:
        require_regions(progress.caught_up_generations)


def _validate_on(transaction: Transaction, latest: Manifest) -> None:
    create = transaction.create_index
    require_known_bases(
        {index.base_id for index in create.new_indices if index.HasField("base_id")},
        {base.id for base in latest.base_paths},
    )
    fields = {field.id for field in latest.fields}
    for index in create.new_indices:
        if missing := sorted(set(index.fields) - fields):
            # pylance commits that, and then can't filter the table by any column.
            raise InvalidRequest(
                f"index {index.name!r} is on fields {missing}, which version {latest.version} does not have; its "
                f"fields are {sorted(fields)}. Build the index on a column of the table",
                code="unknown_field",
            )


def _validate_as_read(transaction: Transaction, read: Manifest) -> None:
    """Check that no index covers a fragment that its writer can't have read.

    Such an index hides the rows of the fragment that gets the id later: readers look for them in the index alone.
    """
    highest = read.max_fragment_id if read.HasField("max_fragment_id") else -1
    for index in transaction.create_index.new_indices:
        covered = None if is_system_index(index) else covered_fragments(index, staged=True)
        if covered and covered.max() > highest:
            raise InvalidRequest(
                f"index {index.name!r} says that it covers fragment {covered.max()}, but version {read.version} has "
                f"given out no id above {highest}. Set read_version to the version that the index was built on",
                code="index_bitmap",
            )


def _excerpt(transaction: Transaction, file: ManifestFile) -> Manifest:
    """The outline. For an old table, which does not say what its highest fragment id is, with that id."""
    if file.outline.HasField("max_fragment_id") or not file.fragments.chunks:
        return file.outline
    outline = Manifest()
    outline.CopyFrom(file.outline)
    outline.max_fragment_id = file.fragments.last_id
    return outline


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    create = transaction.create_index
    generations: list[tuple[bytes, int]] = []
    for index in create.new_indices:
        if index.name == MEM_WAL_INDEX:
            details = unpack_details(index, MemWalIndexDetails, staged=staged)
            generations += touched_generations(details.merged_generations)
    return Footprint(
        kind=Kind.CREATE_INDEX,
        new_indices=tuple(_footprint_of_index(index, staged=staged) for index in create.new_indices),
        removed_indices=tuple(_footprint_of_index(index, staged=staged) for index in create.removed_indices),
        generations=tuple(generations),
    )


def _footprint_of_index(index: IndexMetadata, *, staged: bool) -> IndexFootprint:
    covered = covered_fragments(index, staged=staged)
    return IndexFootprint(
        name=index.name,
        uuid=index.uuid.uuid,
        fields=frozenset(index.fields),
        fragments=None if covered is None else FrozenBitMap(covered),
        dataset_version=index.dataset_version,
        # Lance 14: conflict_resolver.rs, check_create_index_txn.
        follows_reuse=type_name(index) != "NGramIndexDetails",
    )


def _rebase(transaction: Transaction, facts: RebaseFacts) -> RebasedTransaction | RowConflict:
    left = what_is_left(transaction, facts.theirs, facts.schema)
    if isinstance(left, RowConflict):
        return left
    rebased = rebase_indices(transaction, facts.theirs, facts.schema)
    if facts.reuse is None:
        return RebasedTransaction(transaction=rebased, note=left)
    return rebase_reuse(rebased, facts.reuse, latest_version=facts.latest_version, index_uuid=facts.index_uuid)


def what_is_left(transaction: Transaction, theirs: Sequence[Footprint], schema: Sequence[Field]) -> str | RowConflict:
    """What the indices still cover after theirs moved rows, for people; empty if nothing that they cover has moved.

    It is a conflict if nothing is left of an index, because that index would be useless. It is also a conflict if
    theirs moved rows that keep their ids into fragments of which an index that holds these ids covers only a part of
    the rows: pylance 4.0.0 would find these rows twice.
    """
    rebased = rebase_indices(transaction, theirs, schema)
    unfollowed = [one for one in theirs if one.kind is Kind.REWRITE and one.reuse_version is None]
    gone = BitMap().union(*(BitMap(one.fragments) for one in unfollowed))
    have_ids = any(group.old_row_ids for one in unfollowed for group in one.moves)
    notes = []
    for staged, now in zip(transaction.create_index.new_indices, rebased.create_index.new_indices, strict=True):
        built = covered_fragments(staged, staged=True)
        covers = covered_fragments(now, staged=True)
        if is_system_index(staged) or built is None or covers is None or not built & gone:
            continue
        if not covers - gone:
            return RowConflict(
                message=f"all fragments that index {staged.name!r} was built on were rewritten meanwhile",
                rule="indexed_fragment_rewritten",
            )
        if have_ids and not holds_addresses(staged) and _is_split(built, unfollowed):
            return RowConflict(
                message=f"fragments that index {staged.name!r} was built on were rewritten together with others",
                rule="indexed_fragment_rewritten",
            )
        lost, left = len(built & gone), len(covers - gone)
        notes.append(
            f"index {staged.name!r} was built on {len(built)} fragments, of which {lost} "
            f"{'was' if lost == 1 else 'were'} rewritten meanwhile; it covers "
            f"{left} fragment{'s' if left > 1 else ''}, and queries scan the others until the index is optimized"
        )
    return "; ".join(notes)


def rebase_indices(transaction: Transaction, theirs: Iterable[Footprint], schema: Sequence[Field]) -> Transaction:
    """A CreateIndex whose indices cover only fields that were not rewritten since, and whose MemWAL index includes
    their merges.

    Where theirs moved rows that keep their ids, an index that holds these ids covers the new fragments in place of the
    old fragments, if it covered all fragments that were rewritten together. An index that holds addresses keeps its
    list: readers skip fragments that are gone, and scan those that are not listed.

    `theirs` are in ascending order, `schema` is that of the latest version. Lance 14: conflict_resolver.rs,
    check_create_index_txn and finish_create_index; transaction.rs, build_manifest, Rewrite.
    """
    rebased = copied(transaction)
    create = rebased.create_index
    for one in theirs:
        if one.kind is Kind.REWRITE:
            followed = [_over_rewrite(index, one) for index in create.new_indices]
            del create.new_indices[:]
            create.new_indices.extend(followed)
        # An Update rewrites fields in all fragments that it changes; a DataReplacement replaces the same fields in all.
        rewritten = one.fields_modified.union(*one.replaced.values())
        if rewritten:
            pruned = without_updated_fields(create.new_indices, one.replaced or one.files, rewritten, schema)
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


def _is_split(built: BitMap, theirs: Iterable[Footprint]) -> bool:
    """Whether theirs rewrote some of these fragments, or of the fragments to which their rows moved, with other
    fragments.
    """
    covered = BitMap(built)
    for group in (group for one in theirs for group in one.moves):
        old = BitMap(group.old)
        if covered & old and not old <= covered:
            return True
        covered |= BitMap(group.new) if old <= covered else BitMap()
    return False


def _over_rewrite(index: IndexMetadata, theirs: Footprint) -> IndexMetadata:
    covered = covered_fragments(index, staged=True)
    if is_system_index(index) or covered is None or not covered & BitMap(theirs.fragments):
        return index
    if not any(group.old_row_ids for group in theirs.moves):
        return index
    if holds_addresses(index):
        return with_coverage(index, covered - BitMap(theirs.fragments))
    for group in theirs.moves:
        old = BitMap(group.old)
        covered = (covered - old) | (BitMap(group.new) if old <= covered else BitMap())
    return with_coverage(index, covered)


def rebase_reuse(
    transaction: Transaction, contents: ReuseContents, *, latest_version: int, index_uuid: bytes
) -> RebasedTransaction:
    """A CreateIndex of the fragment reuse index, with the entries that theirs added.

    The index gets a new uuid, the 16 bytes `index_uuid`. Lance: conflict_resolver.rs, finish_create_index.
    """
    content = Content()
    content.CopyFrom(contents.ours)
    known = [entry.SerializeToString(deterministic=True) for entry in contents.read.versions]
    content.versions.extend(
        entry for entry in contents.latest.versions if entry.SerializeToString(deterministic=True) not in known
    )
    rebased = copied(transaction)
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
    return RebasedTransaction(transaction=rebased, files=files)


def _require_one_index(indices: Iterable[IndexMetadata], names: Set[str], fragment_ids: BitMap64) -> None:
    """Check that all segments of an index with one of these names are parts of one index.

    They are of one kind, on the same fields, with the same covering fields: otherwise pylance can't list the indices,
    or filter by them (Lance 14: index.rs, commit_existing_index_segments). All hold addresses of rows, or all hold ids:
    readers ask the first segment (manifest_build.rs, CreateIndex). No two cover the same fragment: otherwise queries
    find its rows twice, and pylance's `validate` calls the table corrupt.

    Raises `InvalidRequest` (`index_fields`, `index_details`, `index_bitmap`).
    """
    segments: dict[str, list[IndexMetadata]] = {}
    for index in indices:
        if index.name in names and not is_system_index(index):
            segments.setdefault(index.name, []).append(index)
    for first, *others in segments.values():
        covered = coverage(first) or BitMap()
        for other in others:
            _require_same_kind(first, other)
            theirs = coverage(other) or BitMap()
            if twice := BitMap64(covered & theirs) & fragment_ids:
                raise InvalidRequest(
                    f"index {first.name!r} would have two segments for fragments {listed(list(twice))}, and queries "
                    "would find their rows twice; replace the segments that cover them (removed_indices)",
                    code="index_bitmap",
                )
            covered |= theirs


def _require_same_kind(first: IndexMetadata, other: IndexMetadata) -> None:
    for what, one, another in (
        ("covering fields", first.covering_fields, other.covering_fields),
        ("fields", first.fields, other.fields),
    ):
        if list(one) != list(another):
            raise InvalidRequest(
                f"index {first.name!r} would have segments with {what} {list(one)} and {list(another)}; build all its "
                "segments with the same ones",
                code="index_fields",
            )
    kinds = [type_name(index) for index in (first, other)]
    if kinds[0] != kinds[1] and all(kinds):
        raise InvalidRequest(
            f"index {first.name!r} would have segments of kinds {kinds[0]} and {kinds[1]}; give the new index a name "
            "of its own, or replace the whole index",
            code="index_details",
        )
    if holds_addresses(first) != holds_addresses(other):
        raise InvalidRequest(
            f"index {first.name!r} would have segments that hold addresses of rows beside segments that hold ids "
            f"(versions {first.index_version} and {other.index_version}); build all its segments anew, in one "
            "transaction",
            code="index_details",
        )


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: transaction.rs, build_manifest, CreateIndex. Segments of one name that it does not list stay.

    There is one system index of each name: a new system index replaces the table's (conflict_resolver.rs,
    finish_create_index).
    """
    create = transaction.create_index
    replaced = {index.uuid.uuid for index in (*create.removed_indices, *create.new_indices)}
    made = {index.name for index in create.new_indices} & SYSTEM_INDICES
    kept = [i for i in draft.indices if i.uuid.uuid not in replaced and i.name not in made]
    draft.indices = [*kept, *create.new_indices]
    _require_one_index(draft.indices, {index.name for index in create.new_indices}, draft.fragment_ids())
    finish(draft)


CREATE_INDEX = Operation(
    kind=Kind.CREATE_INDEX,
    scales_with=ScalesWith.UNBOUNDED,
    inputs=frozenset({Input.READ_VERSION, Input.STAGED_REUSE}),
    index_files=_index_files,
    unlisted_indices=_unlisted_indices,
    validate=_validate,
    validate_on=_validate_on,
    validate_as_read=_validate_as_read,
    excerpt=_excerpt,
    footprint=_footprint,
    rebase=_rebase,
    rebase_footprints=CoverageFootprints,
    build=_build,
)
