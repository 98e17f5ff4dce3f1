"""What a transaction touches: all that the conflict rules look at, and nothing else.

A footprint is computed once for each committed version and kept, so judging is set algebra on small
values and reads nothing. Ours and theirs have the same shape; what only one side can know is empty
on the other: for ours the table at its read version, for theirs the version that came of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from pyroaring import FrozenBitMap

from committerd.format.fragment_reuse import ExternalContent, reuse_content
from committerd.format.index_details import (
    FRAGMENT_REUSE_INDEX,
    MEM_WAL_INDEX,
    covered_fragments,
    covers_any,
    is_system_index,
    type_name,
    unpack_details,
)
from committerd.format.messages import (
    DataFragment,
    Field,
    IndexMetadata,
    Manifest,
    MemWalIndexDetails,
    MergedGeneration,
    Transaction,
)
from committerd.format.support import has_stable_row_ids
from committerd.format.writers import own_lance_major
from committerd.rules.fragments import FileIdentity, file_identity
from committerd.rules.indices import holds_addresses
from committerd.rules.key_filter import KeyFilter, key_filter
from committerd.rules.kind import Kind as Kind
from committerd.rules.normalise import normalised
from committerd.rules.position import KEY_PREFIX
from committerd.rules.schema import may_tighten_nullability

# 14.0.2 asks, 4.0.0 doesn't; which one began is not known, so all between are taken to ask.
_LANCE_ASKS_OF_INDICES = 5

_ID_BYTES = 100
"""Of a number in a set: itself, and its place in a table that is at most three fifths full."""
_OBJECT_BYTES = 400
"""Of a small object with what refers to it."""


_NO_FRAGMENTS = FrozenBitMap()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFootprint:
    """One index that a CreateIndex adds or removes."""

    name: str
    uuid: bytes = b""
    fields: frozenset[int] = frozenset()
    fragments: FrozenBitMap | None = _NO_FRAGMENTS
    """Fragments that it covers; None = unknown. A few bytes may stand for millions, so they are never listed."""
    dataset_version: int = 0
    follows_reuse: bool = True
    """Readers find its rows through fragment reuse entries; not so an n-gram index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFootprint:
    """One base path that an UpdateBases adds. `id` 0 = to be assigned."""

    id: int
    name: str | None
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one transaction touches. The default of each attribute is "nothing"."""

    kind: Kind
    fragments: frozenset[int] = frozenset()
    """Existing fragments that it changes, removes or replaces data of."""
    removed: frozenset[int] = frozenset()
    """Those of them that are gone afterwards (Delete, Update)."""
    files: Mapping[int, tuple[FileIdentity, ...]] = field(default_factory=dict)
    """Data files, by fragment, of those that it leaves changed (Delete, Update)."""
    files_read: Mapping[int, tuple[FileIdentity, ...]] | None = None
    """The same fragments at our read version; None = that version can't be read, or this is theirs."""
    moves_rows: bool = False
    """An Update whose changed rows are in new fragments."""
    fields_modified: frozenset[int] = frozenset()
    """Fields that an Update rewrote in place."""
    replaced: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Field ids, by fragment, whose data a DataReplacement replaces."""
    groups: tuple[frozenset[int], ...] = ()
    """Old fragments of each group of a Rewrite."""
    defers_indices: bool = False
    """A Rewrite that left indices to be remapped by a fragment reuse index."""
    reuse_version: int | None = None
    """`dataset_version` of the fragment reuse entry committed with a Rewrite."""
    new_indices: tuple[IndexFootprint, ...] = ()
    removed_indices: tuple[IndexFootprint, ...] = ()
    lance_major: int | None = None
    """Which Lance committed theirs; None = another writer, or this is ours."""
    asserts_nullability: bool = False
    """A Merge or Project whose writer says (since Lance 14) that it preserves nullability."""
    preserves_nullability: bool = True
    """False for a Merge or Project after which some field may no longer be null or left out."""
    schema_fields: frozenset[int] = frozenset()
    """Field ids that a Merge or Project keeps."""
    config_upserts: frozenset[str] = frozenset()
    config_deletes: frozenset[str] = frozenset()
    table_metadata_keys: frozenset[str] = frozenset()
    replaces_table_metadata: bool = False
    sets_schema_metadata: bool = False
    metadata_fields: frozenset[int] = frozenset()
    """Fields whose metadata an UpdateConfig names."""
    changes_metadata: bool = False
    """An UpdateConfig that really changes metadata of the schema or of a field."""
    generations: tuple[tuple[bytes, int], ...] = ()
    """MemWAL region and generation, merged by it."""
    key_filter: KeyFilter | None = None
    bases: tuple[BaseFootprint, ...] = ()

    @property
    def creates(self) -> frozenset[str]:
        """Names of the indices that a CreateIndex adds."""
        return frozenset(index.name for index in self.new_indices)

    @property
    def by_old_lance(self) -> bool:
        """Whether a Lance committed it that doesn't ask what a concurrent index is built on.

        Observed of 4.0.0. Such a version is judged as that Lance would: its writers go by its rules.
        """
        return self.lance_major is not None and self.lance_major < _LANCE_ASKS_OF_INDICES

    @property
    def sets_table_metadata(self) -> bool:
        return self.replaces_table_metadata or bool(self.table_metadata_keys)


AN_APPEND = Footprint(kind=Kind.APPEND)
"""It says no more than what it is."""


def size_of(touched: Footprint) -> int:
    """What a footprint takes in memory beside what all have, in bytes; an estimate that errs upwards."""
    keys = touched.key_filter
    ids = (
        len(touched.fragments)
        + len(touched.removed)
        + len(touched.fields_modified)
        + len(touched.schema_fields)
        + len(touched.metadata_fields)
        + sum(map(len, touched.groups))
        + sum(map(len, touched.replaced.values()))
        + sum(len(index.fields) + len(index.fragments or ()) for index in touched.new_indices)
        + sum(len(index.fields) + len(index.fragments or ()) for index in touched.removed_indices)
        + (len(keys.exact or ()) if keys is not None else 0)
    )
    texts = [*touched.config_upserts, *touched.config_deletes, *touched.table_metadata_keys]
    files = sum(
        _OBJECT_BYTES + len(path) + _ID_BYTES * (len(fields) + len(columns))
        for several in touched.files.values()
        for path, fields, columns, *_ in several
    )
    objects = (
        len(touched.files)
        + len(touched.replaced)
        + len(touched.groups)
        + len(touched.new_indices)
        + len(touched.removed_indices)
        + len(touched.generations)
        + len(touched.bases)
        + len(texts)
    )
    texts += [text for base in touched.bases for text in (base.path, base.name or "")]
    return ids * _ID_BYTES + objects * _OBJECT_BYTES + files + sum(map(len, texts)) + len(keys.bloom if keys else b"")


def footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    """What the message itself says.

    Raises `ValueError` for an operation that we don't know, and as `normalised` does. What can't be
    decoded in it raises `InvalidRequest` when staged, else `CorruptTable`.
    """
    operation = transaction.WhichOneof("operation")
    if operation is None:
        raise ValueError("the transaction has no operation that committerd knows")
    kind = Kind(operation)
    transaction = normalised(transaction)
    match kind:
        case Kind.DELETE:
            return _changed_fragments(
                kind, transaction.delete.updated_fragments, transaction.delete.deleted_fragment_ids
            )
        case Kind.UPDATE:
            return _update(transaction.update)
        case Kind.OVERWRITE:
            return Footprint(kind=kind, config_upserts=frozenset(transaction.overwrite.config_upsert_values))
        case Kind.CREATE_INDEX:
            return _create_index(transaction.create_index, staged=staged)
        case Kind.REWRITE:
            groups = tuple(frozenset(old.id for old in group.old_fragments) for group in transaction.rewrite.groups)
            return Footprint(kind=kind, groups=groups, fragments=frozenset().union(*groups))
        case Kind.MERGE:
            return _schema_change(kind, transaction.merge.schema, preserves=transaction.merge.preserves_nullability)
        case Kind.PROJECT:
            return _schema_change(
                kind,
                transaction.project.schema,
                preserves=transaction.project.preserves_nullability,
            )
        case Kind.UPDATE_CONFIG:
            return _update_config(transaction.update_config)
        case Kind.DATA_REPLACEMENT:
            return _data_replacement(transaction.data_replacement)
        case Kind.UPDATE_MEM_WAL_STATE:
            return Footprint(
                kind=kind,
                generations=_generations(transaction.update_mem_wal_state.merged_generations),
            )
        case Kind.UPDATE_BASES:
            return Footprint(
                kind=kind,
                bases=tuple(
                    BaseFootprint(
                        id=base.id,
                        name=base.name if base.HasField("name") else None,
                        path=base.path,
                    )
                    for base in transaction.update_bases.new_bases
                ),
            )
        case Kind.APPEND:
            return AN_APPEND
        case Kind.RESTORE | Kind.RESERVE_FRAGMENTS | Kind.CLONE:
            return Footprint(kind=kind)
        case _:
            assert_never(kind)


def footprint_of_ours(
    transaction: Transaction,
    read: Manifest | None,
    read_indices: Iterable[IndexMetadata] = (),
) -> Footprint:
    """What our transaction touches, with what the table was at its read version (None = that can't be read)."""
    bare = footprint(transaction, staged=True)
    if read is None:
        return bare
    match bare.kind:
        case Kind.DELETE | Kind.UPDATE:
            return replace(bare, files_read=_files_of(read.fragments, bare.fragments))
        case Kind.MERGE | Kind.PROJECT:
            return replace(bare, preserves_nullability=_preserves_nullability(transaction, read))
        case Kind.REWRITE:
            return replace(bare, defers_indices=_defers_indices(transaction.rewrite, bare, read, read_indices))
        case _:
            return bare


def footprint_of_theirs(
    transaction: Transaction,
    *,
    before: Manifest | None,
    after: Manifest,
    indices: Iterable[IndexMetadata],
) -> Footprint:
    """What a committed transaction touched.

    `before` is the version below it (None = can't be read), `after` and `indices` are the version that it made.
    """
    bare = replace(footprint(transaction, staged=False), lance_major=own_lance_major(after))
    match bare.kind:
        case Kind.MERGE | Kind.PROJECT if before is not None:
            return replace(bare, preserves_nullability=_preserves_nullability(transaction, before))
        case Kind.REWRITE:
            reuse = reuse_version(transaction.rewrite, indices)
            return replace(bare, reuse_version=reuse, defers_indices=reuse is not None)
        case _:
            return bare


def reuse_version(rewrite: Transaction.Rewrite, indices: Iterable[IndexMetadata]) -> int | None:
    """`dataset_version` of the fragment reuse entry that describes this Rewrite; None when none
    does.

    pylance adds the entry to the manifest and never to the transaction, so the manifest is where it
    can be seen.
    """
    old = frozenset(fragment.id for group in rewrite.groups for fragment in group.old_fragments)
    for index in indices:
        if index.name != FRAGMENT_REUSE_INDEX or not old:
            continue
        # An entry in a file of its own can't be looked into without a read; the index's date must
        # do.
        content = reuse_content(index)
        if isinstance(content, ExternalContent):
            return index.dataset_version
        for entry in content.versions:
            described = {digest.id for group in entry.groups for digest in group.old_fragments}
            if old <= described:
                return entry.dataset_version
    return None


def _changed_fragments(kind: Kind, updated: Sequence[DataFragment], removed: Iterable[int]) -> Footprint:
    gone = frozenset(removed)
    return Footprint(
        kind=kind,
        fragments=gone | {fragment.id for fragment in updated},
        removed=gone,
        files={fragment.id: _files(fragment) for fragment in updated},
    )


def _update(update: Transaction.Update) -> Footprint:
    in_place = update.update_mode == Transaction.REWRITE_COLUMNS
    return replace(
        _changed_fragments(Kind.UPDATE, update.updated_fragments, update.removed_fragment_ids),
        moves_rows=bool(update.new_fragments) and not in_place,
        fields_modified=frozenset(update.fields_modified),
        generations=_generations(update.merged_generations),
        key_filter=key_filter(update.inserted_rows) if update.HasField("inserted_rows") else None,
    )


def _create_index(create: Transaction.CreateIndex, *, staged: bool) -> Footprint:
    generations: list[tuple[bytes, int]] = []
    for index in create.new_indices:
        if index.name == MEM_WAL_INDEX:
            details = unpack_details(index, MemWalIndexDetails, staged=staged)
            generations += _generations(details.merged_generations)
    return Footprint(
        kind=Kind.CREATE_INDEX,
        new_indices=tuple(_index(index, staged=staged) for index in create.new_indices),
        removed_indices=tuple(_index(index, staged=staged) for index in create.removed_indices),
        generations=tuple(generations),
    )


def _index(index: IndexMetadata, *, staged: bool) -> IndexFootprint:
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


def _schema_change(kind: Kind, schema: Iterable[Field], *, preserves: bool) -> Footprint:
    # Without the schema that it started from, what newer writers claim is all there is; older ones
    # claim nothing.
    return Footprint(
        kind=kind,
        asserts_nullability=preserves,
        preserves_nullability=preserves,
        schema_fields=frozenset(column.id for column in schema),
    )


def _update_config(config: Transaction.UpdateConfig) -> Footprint:
    table = config.table_metadata_updates
    metadata = [config.schema_metadata_updates, *config.field_metadata_updates.values()]
    return Footprint(
        kind=Kind.UPDATE_CONFIG,
        config_upserts=frozenset(
            entry.key for entry in config.config_updates.update_entries if entry.HasField("value")
        ),
        config_deletes=frozenset(
            entry.key for entry in config.config_updates.update_entries if not entry.HasField("value")
        ),
        table_metadata_keys=frozenset(
            # Our own entries are no one else's business: they come with every version, and stay in
            # a replaced map.
            entry.key
            for entry in table.update_entries
            if not entry.key.startswith(KEY_PREFIX)
        ),
        replaces_table_metadata=table.replace,
        sets_schema_metadata=config.HasField("schema_metadata_updates"),
        metadata_fields=frozenset(config.field_metadata_updates),
        changes_metadata=any(update.replace or update.update_entries for update in metadata),
    )


def _data_replacement(replacement: Transaction.DataReplacement) -> Footprint:
    replaced: dict[int, frozenset[int]] = {}
    for group in replacement.replacements:
        fields = frozenset(group.new_file.fields)
        replaced[group.fragment_id] = replaced.get(group.fragment_id, frozenset()) | fields
    return Footprint(kind=Kind.DATA_REPLACEMENT, fragments=frozenset(replaced), replaced=replaced)


def _generations(merged: Iterable[MergedGeneration]) -> tuple[tuple[bytes, int], ...]:
    return tuple((one.region_id.uuid, one.generation) for one in merged)


def _files(fragment: DataFragment) -> tuple[FileIdentity, ...]:
    return tuple(file_identity(file) for file in fragment.files)


def _files_of(fragments: Iterable[DataFragment], ids: frozenset[int]) -> dict[int, tuple[FileIdentity, ...]]:
    return {fragment.id: _files(fragment) for fragment in fragments if fragment.id in ids}


def _preserves_nullability(transaction: Transaction, before: Manifest) -> bool:
    after = transaction.merge.schema if transaction.HasField("merge") else transaction.project.schema
    return not may_tighten_nullability(before.fields, after)


def _defers_indices(
    rewrite: Transaction.Rewrite,
    bare: Footprint,
    read: Manifest,
    indices: Iterable[IndexMetadata],
) -> bool:
    # Lance: optimize.rs: a compaction rewrites every index that covers its fragments, unless it was
    # told to defer that; indices of stable row ids need no rewriting, and those that can't be
    # rewritten are left alone.
    if has_stable_row_ids(read):
        return False
    rewritten = {one.old_id.uuid for one in rewrite.rewritten_indices}
    return any(
        not is_system_index(index)
        and not holds_addresses(index)
        and index.uuid.uuid not in rewritten
        and covers_any(covered_fragments(index, staged=False), bare.fragments)
        for index in indices
    )
