"""The record in which each operation says what is particular to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from committerd.lance.checks.texts import Entries
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.operations.allowed import Allowed
from committerd.lance.operations.rebase import DeletionMerge, Rebased, RebaseFacts, RowConflict
from committerd.lance.versions.draft import Draft
from committerd_common.messages import BasePath, DataFile, DataFragment, IndexMetadata, Manifest, Transaction


class Target(Enum):
    """Which tables an operation is for."""

    EXISTING = "existing"
    """It changes a table that exists."""
    ANY = "any"
    """It replaces what a table holds, or makes the table."""
    NEW = "new"
    """It only makes a table."""


class ReadVersion(Enum):
    """What `read_version` means to an operation."""

    REQUIRED = "required"
    """The version that the work was planned on; there must be one."""
    OPTIONAL = "optional"
    """The same, or 0: on the latest version, whatever it is."""
    OF_SOURCE = "of_source"
    """A version of another table, which says nothing about this one."""


class Cost(Enum):
    """What the work on an operation grows with."""

    FRAGMENTS = "fragments"
    """The fragments that it brings."""
    MESSAGE = "message"
    """The bytes of its transaction."""
    TABLE = "table"
    """The bytes of its transaction, and the fragments that the table has."""
    UNBOUNDED = "unbounded"
    """Anything: a few bytes of it can cause much work."""


class Need(Enum):
    """What is read for an operation beside the latest version."""

    READ_VERSION = "read_version"
    """The version that it was read at, to judge it."""
    FOOTPRINTS = "footprints"
    """The footprints of what was committed since, to rebase it."""
    STAGED_REUSE = "staged_reuse"
    """The content of the fragment reuse index that it brings."""
    SCHEMA_METADATA = "schema_metadata"
    """The metadata of the schema, from its first data file."""
    RESTORED_VERSION = "restored_version"
    """The version that a Restore names."""
    CLONED_TABLE = "cloned_table"
    """The version of another table that a Clone names."""
    VERSION_BELOW = "version_below"
    """Once it is committed: the version below its own, to know what it touched."""


class StagedFiles(NamedTuple):
    """The fragments and data files that a transaction brings into the table."""

    fragments: Sequence[DataFragment]
    """As the next version will have them, but for their ids."""
    data_files: Sequence[DataFile]
    """Those of the fragments, and those of a DataReplacement."""


class StagedIndexFile(NamedTuple):
    """A file of an index that a transaction brings."""

    index_uuid: bytes
    """16 bytes; they name the folder."""
    path: str
    """Below that folder."""
    size_bytes: int
    """0 = the transaction doesn't say."""
    base_id: int | None
    """None = the table's own folder."""


NO_FILES = StagedFiles((), ())


class FootprintOf(Protocol):
    """Tells what a transaction touches."""

    def __call__(self, transaction: Transaction, *, staged: bool) -> Footprint:
        """What the message itself says. `staged`: its producer is to blame for what can't be decoded."""
        ...


def _unchanged(transaction: Transaction) -> Transaction:
    return transaction


def _nothing(transaction: Transaction) -> tuple[()]:
    return ()


def _no_files(transaction: Transaction) -> StagedFiles:
    return NO_FILES


def _always_valid(transaction: Transaction, allowed: Allowed, room: int) -> None:
    return


def _always_fits(transaction: Transaction, latest: Manifest) -> None:
    return


def _no_difference(transaction: Transaction, latest: Manifest) -> None:
    return None


def _outline(transaction: Transaction, file: ManifestFile) -> Manifest:
    return file.outline


def _as_it_says(
    touched: Footprint, transaction: Transaction, before: Manifest | None, indices: Iterable[IndexMetadata]
) -> Footprint:
    return touched


def _no_merges(transaction: Transaction, read: Manifest | None, latest: Manifest) -> Sequence[DeletionMerge]:
    return ()


def _no_ids(transaction: Transaction, latest: Manifest) -> tuple[int, int]:
    return 0, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """All that is particular to one operation. What has a default is left out where there is nothing to say.

    Every function takes a transaction of this operation, normalised unless it says otherwise, and leaves it as it is.
    """

    kind: Kind
    target: Target = Target.EXISTING
    read_version: ReadVersion = ReadVersion.REQUIRED
    cost: Cost
    needs: frozenset[Need] = frozenset()

    # What the transaction says
    normalised: Callable[[Transaction], Transaction] = _unchanged
    """The transaction with the present fields in the place of deprecated ones; the same object when it has none.

    Raises `InvalidRequest` when it uses both.
    """
    staged_files: Callable[[Transaction], StagedFiles] = _no_files
    """What it brings."""
    new_files: Callable[[Transaction], StagedFiles] | None = None
    """As `staged_files`, without most files that the table has already; None = the same."""
    index_files: Callable[[Transaction], Sequence[StagedIndexFile]] = _nothing
    """The files of indices that it brings."""
    initial_bases: Callable[[Transaction], Sequence[BasePath]] = _nothing
    """Base paths that it adds for its own files."""
    named_fragments: Callable[[Transaction], Sequence[int]] = _nothing
    """Ids of existing fragments, which it may list once each."""
    entries: Callable[[Transaction], Sequence[Entries]] = _nothing
    """Keys and values that stay in the table."""
    names: Callable[[Transaction], Sequence[tuple[str, str]]] = _nothing
    """Other names that stay in the table: where each stands in the transaction, and the name."""
    keeps_data_format: bool = True
    """Its data files must be of the table's file format version."""
    carries_row_ids: bool = False
    """Its fragments hold rows that the table has, so they come with row ids where rows have them."""

    # Whether it is valid
    validate: Callable[[Transaction, Allowed, int], None] = _always_valid
    """Return when the message may be worth judging. The number: bytes that a key below the table's folder may have.

    Raises `InvalidRequest` or `UnsupportedRequest`.
    """
    validate_on: Callable[[Transaction, Manifest], None] = _always_fits
    """Return when it fits the latest version, of which `excerpt` is given. Raises `InvalidRequest`."""
    differing_schema: Callable[[Transaction, Manifest], str | None] = _no_difference
    """How files written for no particular version contradict the schema of the latest; None when nothing shows."""

    # What it touches
    excerpt: Callable[[Transaction, ManifestFile], Manifest] = _outline
    """As much of a version as judging it takes, so that of 100,000 fragments only those in question are decoded."""
    footprint: FootprintOf
    """What it touches, as the message says it."""
    footprint_of_ours: Callable[[Footprint, Transaction, Manifest, Iterable[IndexMetadata]], Footprint] = _as_it_says
    """The footprint, with what the version that it was read at and the indices of that version tell."""
    footprint_of_theirs: Callable[[Footprint, Transaction, Manifest | None, Iterable[IndexMetadata]], Footprint] = (
        _as_it_says
    )
    """The footprint, with what the version below (None = unreadable) and the indices of its own version tell."""

    # How it passes what was committed since it was read
    deletions_to_merge: Callable[[Transaction, Manifest | None, Manifest], Sequence[DeletionMerge]] = _no_merges
    """The fragments whose deletion files `rebase` needs, given the read version (None = unreadable) and the latest."""
    rebase: Callable[[Transaction, RebaseFacts], Rebased | RowConflict] | None = None
    """The transaction as it applies on top of what was committed since; None = as it is."""

    # How it makes the next version
    build: Callable[[Draft, Transaction], None]
    """Turn the draft into the next version, in place. Raises `InvalidRequest` for what can't be made of the latest."""
    reserved: Callable[[Transaction, Manifest], tuple[int, int]] = _no_ids
    """The first fragment id and how many ids its producer gets on top of the latest version; (0, 0) = none."""
