"""What a transaction touches: all that the conflict rules look at, and nothing else.

The footprint of a committed version is computed once and kept, so judging is set algebra on small values and reads
nothing. Ours and theirs have the same shape; what only one side can know is empty on the other: for ours the table at
its read version, for theirs the version that it made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyroaring import FrozenBitMap

from committerd.lance.conflicts.key_filter import KeyFilter
from committerd.lance.format.kind import Kind
from committerd.lance.versions.fragments import FileIdentity

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
"""The footprint of every Append: nothing that is there."""


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
