"""The record of all that is specific to one operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from committerd.lance.checks.texts import Entries
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.table_schema import TableSchema
from committerd.lance.operations.permissions import Permissions
from committerd.lance.operations.rebase import (
    DeletionMerge,
    FollowFacts,
    FollowingRebase,
    RebasedTransaction,
    RebaseFacts,
    RowConflict,
)
from committerd.lance.operations.rebase_footprints import RebaseFootprints
from committerd.lance.versions.draft import Draft
from committerd_common.messages import BasePath, DataFile, DataFragment, Field, IndexMetadata, Manifest, Transaction


class AppliesTo(Enum):
    """The tables to which an operation can be applied."""

    EXISTING = "existing"
    """It changes a table that exists."""
    ANY = "any"
    """It replaces the content of a table, or creates the table."""
    NEW = "new"
    """It only creates a table."""


class ReadVersion(Enum):
    """The meaning of `read_version` for an operation."""

    REQUIRED = "required"
    """The version that the writer read; not 0."""
    OPTIONAL = "optional"
    """The version that the writer read, or 0 for the latest version, whatever it is."""
    OF_SOURCE = "of_source"
    """A version of another table; it has no meaning for this one."""


class ScalesWith(Enum):
    """The quantity with which the work on an operation grows."""

    FRAGMENTS = "fragments"
    """The number of fragments that it adds."""
    MESSAGE = "message"
    """The size of its transaction."""
    TABLE = "table"
    """The size of its transaction, and the number of fragments of the table."""
    UNBOUNDED = "unbounded"
    """None: a few bytes of it can cause much work."""


class Input(Enum):
    """The data that must be read for an operation, in addition to the latest version."""

    READ_VERSION = "read_version"
    """Its read version, to judge it."""
    STAGED_REUSE = "staged_reuse"
    """The content of the fragment reuse index that it adds."""
    SCHEMA_METADATA = "schema_metadata"
    """The metadata of the schema, from its first data file."""
    RESTORED_VERSION = "restored_version"
    """The version that a Restore names."""
    CLONED_TABLE = "cloned_table"
    """The version of another table that a Clone names."""
    VERSION_BELOW = "version_below"
    """The version below its own, once it is committed, for its footprint."""


class StagedFiles(NamedTuple):
    """The fragments and data files that a transaction adds to the table."""

    fragments: Sequence[DataFragment]
    """The fragments as in the next version, except for their ids."""
    data_files: Sequence[DataFile]
    """The data files of the fragments, and those of a DataReplacement."""


class StagedIndexFile(NamedTuple):
    """A file of an index that a transaction adds."""

    index_uuid: bytes
    """The 16 bytes that name the index's folder."""
    path: str
    """The path below that folder."""
    size_bytes: int
    """The size in bytes; 0 = unknown."""
    base_id: int | None
    """The id of the base that holds the file; None = the table's own folder."""


NO_FILES = StagedFiles((), ())


class FootprintOf(Protocol):
    """A function that computes the footprint of a transaction."""

    def __call__(self, transaction: Transaction, *, staged: bool) -> Footprint:
        """The footprint, from the message alone.

        Raises `InvalidRequest` (if `staged`) or else `CorruptTable` for parts that can't be decoded.
        """
        ...


def _unchanged(transaction: Transaction) -> Transaction:
    return transaction


def _nothing(transaction: Transaction) -> tuple[()]:
    return ()


def _same_schema(transaction: Transaction) -> None:
    return None


def _no_files(transaction: Transaction) -> StagedFiles:
    return NO_FILES


def _always_valid(transaction: Transaction, allowed: Permissions, key_bytes_max: int) -> None:
    return


def _always_fits(transaction: Transaction, latest: Manifest) -> None:
    return


def _no_difference(transaction: Transaction, schema: TableSchema) -> str:
    return ""


def _outline(transaction: Transaction, file: ManifestFile) -> Manifest:
    return file.outline


def _footprint_as_given(
    touched: Footprint, transaction: Transaction, before: Manifest | None, indices: Iterable[IndexMetadata]
) -> Footprint:
    return touched


def _no_merges(transaction: Transaction, read: Manifest | None, latest: Manifest) -> Sequence[DeletionMerge]:
    return ()


def _no_footprints(ours: Footprint) -> RebaseFootprints:
    return RebaseFootprints()


def _no_ids(transaction: Transaction, latest: Manifest) -> tuple[int, int]:
    return 0, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """All that is specific to one operation. An operation that needs nothing special for an attribute uses its default.

    Every function takes a transaction of this operation, normalised unless stated otherwise, and does not change it.
    """

    kind: Kind
    target: AppliesTo = AppliesTo.EXISTING
    read_version: ReadVersion = ReadVersion.REQUIRED
    scales_with: ScalesWith
    inputs: frozenset[Input] = frozenset()

    # The content of the transaction
    normalised: Callable[[Transaction], Transaction] = _unchanged
    """The transaction with current fields in place of deprecated ones; the same object if it has none.

    Raises `InvalidRequest` if it uses both.
    """
    staged_files: Callable[[Transaction], StagedFiles] = _no_files
    """The fragments and data files that it adds."""
    new_files: Callable[[Transaction], StagedFiles] | None = None
    """Like `staged_files`, but without most files that the table has already; None = same as `staged_files`."""
    index_files: Callable[[Transaction], Sequence[StagedIndexFile]] = _nothing
    """The index files that it adds."""
    unlisted_indices: Callable[[Transaction], Sequence[bytes]] = _nothing
    """The uuids of the indices in the table's folder that it adds without saying which files they have."""
    new_schema: Callable[[Transaction], Sequence[Field] | None] = _same_schema
    """The schema that it gives the table; None = the table keeps its own."""
    initial_bases: Callable[[Transaction], Sequence[BasePath]] = _nothing
    """The base paths that it adds for its own files."""
    named_fragments: Callable[[Transaction], Sequence[int]] = _nothing
    """The ids of the existing fragments that it lists; it may list each only once."""
    entries: Callable[[Transaction], Sequence[Entries]] = _nothing
    """The keys and values that the table stores."""
    names: Callable[[Transaction], Sequence[tuple[str, str]]] = _nothing
    """Other names that the table stores, as (field of the transaction, name)."""
    keeps_data_format: bool = True
    """Whether its data files must have the table's file format version."""
    carries_row_ids: bool = False
    """Whether its fragments hold existing rows, so that they come with row ids if the table has stable ones."""

    own_properties: frozenset[str] = frozenset()
    """The properties below `committerd.` by which a producer may say more about it."""

    # Validation
    validate: Callable[[Transaction, Permissions, int], None] = _always_valid
    """Check the message alone. The number is the maximum bytes of a key below the table's folder.

    Raises `InvalidRequest` or `UnsupportedRequest`.
    """
    validate_on: Callable[[Transaction, Manifest], None] = _always_fits
    """Check that it fits the latest version, given as its `excerpt`. Raises `InvalidRequest`."""
    validate_as_read: Callable[[Transaction, Manifest], None] | None = None
    """Check what it says of its read version, given as its `excerpt`; None = nothing. Raises `InvalidRequest`.

    If that version can't be read, it is the latest one: then no version since has changed what the transaction names.
    """
    completed: Callable[[Transaction, Manifest], Transaction] | None = None
    """The transaction with what its writer left out, given the `excerpt` of the latest version, which it fits; the same
    object if it left out nothing. None = it can't leave out anything.
    """
    differing_schema: Callable[[Transaction, TableSchema], str] = _no_difference
    """The contradiction between the schema of the latest version and files without a read version; empty if none."""

    # The footprint
    excerpt: Callable[[Transaction, ManifestFile], Manifest] = _outline
    """The part of a version that is needed to judge it, so that not all of 100,000 fragments are decoded."""
    footprint: FootprintOf
    """The footprint, from the message alone."""
    footprint_of_ours: Callable[[Footprint, Transaction, Manifest, Iterable[IndexMetadata]], Footprint] = (
        _footprint_as_given
    )
    """The footprint, completed from its read version and the indices of that version."""
    footprint_of_theirs: Callable[[Footprint, Transaction, Manifest | None, Iterable[IndexMetadata]], Footprint] = (
        _footprint_as_given
    )
    """The footprint, completed from the version below its own (None = unreadable) and the indices of its own."""

    # Rebase onto the versions since its read version
    deletions_to_merge: Callable[[Transaction, Manifest | None, Manifest], Sequence[DeletionMerge]] = _no_merges
    """The fragments whose deletion files `rebase` needs, given the read version (None = unreadable) and the latest."""
    rebase: Callable[[Transaction, RebaseFacts], RebasedTransaction | RowConflict] | None = None
    """The transaction, changed to apply on top of the versions since its read version; None = it needs no change."""
    rebase_footprints: Callable[[Footprint], RebaseFootprints] = _no_footprints
    """What is kept of the versions since its read version for `rebase` and `follow`, given its footprint."""
    follow: Callable[[Transaction, FollowFacts], FollowingRebase] | None = None
    """In place of `rebase` if theirs moved rows of ours, or ours moved rows that theirs deleted."""

    # Build of the next version
    build: Callable[[Draft, Transaction], None]
    """Turn the draft into the next version, in place. Raises `InvalidRequest` if the latest version rules it out."""
    keeps_progress: bool = False
    """Whether the draft's MemWAL index says already how far the other indices have caught up (`follow_indices`)."""
    reserved: Callable[[Transaction, Manifest], tuple[int, int]] = _no_ids
    """(first id, count) of the fragment ids that it reserves on top of the latest version; (0, 0) = none."""
