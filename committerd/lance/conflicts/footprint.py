"""Footprints: the parts of a table that a transaction touches. The conflict rules look at nothing else.

The footprint of a committed version is computed once and kept, so the rules are set algebra on small values and need no
reads. Footprints of ours and theirs have the same attributes. Some attributes are set on one side only: for ours they
come from the table at its read version, for theirs from the version that it made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyroaring import FrozenBitMap

from committerd.lance.conflicts.key_filter import KeyFilter
from committerd.lance.format.kind import Kind
from committerd.lance.versions.fragments import FileIdentity
from committerd.lance.versions.moves import MovedGroup

# 14.0.2 checks this, 4.0.0 doesn't. Which version began is unknown, so all versions in between count as checking it.
_LANCE_ASKS_OF_INDICES = 5

ID_BYTES = 100
"""Memory of a number in a set: the object, and its slot in a hash table that is at most three fifths full."""
_HASH_BYTES = 8
OBJECT_BYTES = 400
"""Memory of a small object and its references."""

_NO_FRAGMENTS = FrozenBitMap()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFootprint:
    """One index that a CreateIndex adds or removes."""

    name: str
    uuid: bytes = b""
    fields: frozenset[int] = frozenset()
    fragments: FrozenBitMap | None = _NO_FRAGMENTS
    """Fragments that it covers; None = unknown. Never list them: a bitmap of a few bytes may hold millions."""
    dataset_version: int = 0
    follows_reuse: bool = True
    """Whether readers find its rows through fragment reuse entries; False for an n-gram index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFootprint:
    """One base path that an UpdateBases adds. `id` 0 = to be assigned."""

    id: int
    name: str | None
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The parts of a table that one transaction touches. The default of each attribute is "nothing"."""

    kind: Kind
    fragments: frozenset[int] = frozenset()
    """Existing fragments that it changes or removes, or whose data it replaces."""
    removed: frozenset[int] = frozenset()
    """Fragments that it removes (Delete, Update)."""
    files: Mapping[int, tuple[FileIdentity, ...]] = field(default_factory=dict)
    """The data files of the fragments that it changes and keeps, by fragment id (Delete, Update)."""
    files_read: Mapping[int, tuple[FileIdentity, ...]] | None = None
    """The same fragments' data files at our read version; None = that version can't be read, or this is theirs."""
    moves_rows: bool = False
    """Whether it is an Update whose changed rows are in new fragments."""
    fields_modified: frozenset[int] = frozenset()
    """Fields that an Update rewrote in place."""
    replaced: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """The ids of the fields whose data a DataReplacement replaces, by fragment id."""
    groups: tuple[frozenset[int], ...] = ()
    """The old fragments of each group of a Rewrite."""
    moves: tuple[MovedGroup, ...] = ()
    """Where a Rewrite put its rows, for each of `groups`."""
    trusts_rewrites: bool = False
    """Whether rows of ours are followed through Rewrites whose writers don't say that rows keep their order."""
    rewritten_indices: frozenset[bytes] = frozenset()
    """The uuids of the indices that a Rewrite replaces by indices with the new addresses."""
    defers_indices: bool = False
    """Whether it is a Rewrite that leaves indices to be remapped through a fragment reuse index."""
    reuse_version: int | None = None
    """`dataset_version` of the fragment reuse entry committed with a Rewrite."""
    new_indices: tuple[IndexFootprint, ...] = ()
    removed_indices: tuple[IndexFootprint, ...] = ()
    lance_major: int | None = None
    """Major version of the Lance that committed theirs; None = another writer, or this is ours."""
    asserts_nullability: bool = False
    """Whether it is a Merge or Project whose writer asserts (since Lance 14) that it preserves nullability."""
    preserves_nullability: bool = True
    """False for a Merge or Project after which some field may no longer be null or left out."""
    may_cast: bool = False
    """Whether it is a Merge that may have cast a column: the column's field has a new id."""
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
    """Whether it is an UpdateConfig that really changes metadata of the schema or of a field."""
    generations: tuple[tuple[bytes, int], ...] = ()
    """The MemWAL generations that it merges, as (region id, generation)."""
    key_filter: KeyFilter | None = None
    """The keys that an Update may insert, or those of the rows of an Append; None if they are not known."""
    is_by_key: bool = False
    """Whether it is an Update that depends on no rows but the rows with the keys of `key_filter`."""
    changed_fields: frozenset[int] | None = None
    """For an Update that inserts no row: the fields whose values it changes; None if it may insert one, or does not
    say.
    """
    bases: tuple[BaseFootprint, ...] = ()

    @property
    def creates(self) -> frozenset[str]:
        """The names of the indices that a CreateIndex adds."""
        return frozenset(index.name for index in self.new_indices)

    @property
    def by_old_lance(self) -> bool:
        """Whether the Lance that committed it ignores what a concurrent index is built on.

        Observed with 4.0.0. Such a version is judged by the rules of that Lance, because its writers rely on them.
        """
        return self.lance_major is not None and self.lance_major < _LANCE_ASKS_OF_INDICES

    @property
    def sets_table_metadata(self) -> bool:
        return self.replaces_table_metadata or bool(self.table_metadata_keys)


AN_APPEND = Footprint(kind=Kind.APPEND)
"""The footprint of an Append that does not name its keys: it touches nothing that exists."""


def size_of(touched: Footprint) -> int:
    """The memory that a footprint takes beyond an empty one, in bytes: a generous estimate."""
    keys = touched.key_filter
    ids = (
        len(touched.fragments)
        + len(touched.removed)
        + len(touched.fields_modified)
        + len(touched.schema_fields)
        + len(touched.rewritten_indices)
        + len(touched.metadata_fields)
        + len(touched.changed_fields or ())
        + sum(map(len, touched.groups))
        + sum(map(len, touched.replaced.values()))
        + sum(len(index.fields) + len(index.fragments or ()) for index in touched.new_indices)
        + sum(len(index.fields) + len(index.fragments or ()) for index in touched.removed_indices)
    )
    texts = [*touched.config_upserts, *touched.config_deletes, *touched.table_metadata_keys]
    files = sum(
        OBJECT_BYTES + len(path) + ID_BYTES * (len(fields) + len(columns))
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
    moves = sum(group.size for group in touched.moves)
    return (
        moves
        + ids * ID_BYTES
        + objects * OBJECT_BYTES
        + files
        + sum(map(len, texts))
        + (len(keys.bloom) + _HASH_BYTES * len(keys.exact or ()) if keys is not None else 0)
    )
