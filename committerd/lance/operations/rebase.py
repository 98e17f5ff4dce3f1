"""The input and the result of a rebase.

A rebase changes our transaction so that it applies on top of the versions since its read version. Each operation that
can be rebased has a function for it (`Operation.rebase`). The function reads nothing: the caller reads the data that
the operation needs (`Operation.inputs`), and passes it as `RebaseFacts`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyroaring import BitMap

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.fragment_reuse import Content
from committerd.lance.format.wording import listed
from committerd.lance.rows.deletions import RowConflict as RowConflict
from committerd_common.messages import DataFragment, Field, Manifest, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionMerge:
    """One fragment in which both sides deleted rows, in three states: at our read version, as staged, and in the latest
    version. Each state may lack a deletion file.
    """

    read: DataFragment
    ours: DataFragment
    latest: DataFragment


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletions:
    """The deleted row offsets of one fragment in the three states of `DeletionMerge`."""

    read: BitMap
    ours: BitMap
    latest: BitMap


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseContents:
    """The content of three fragment reuse indices: the staged one, that of our read version, that of the latest."""

    ours: Content
    read: Content
    latest: Content


@dataclass(frozen=True, slots=True, kw_only=True)
class RebaseFacts:
    """The input of a rebase, as far as the operation needs it."""

    latest_version: int
    theirs: Sequence[Footprint] = ()
    """The parts of footprints that a rebase needs (`operations.rebase_footprints`), ascending by version."""
    schema: Sequence[Field] = ()
    """The schema of the latest version."""
    deletions: Sequence[tuple[DeletionMerge, Deletions]] = ()
    file_ids: Iterator[int]
    """Random 64-bit numbers for the names of new deletion files."""
    reuse: ReuseContents | None = None
    """None if ours adds no fragment reuse index, or if theirs added nothing to it."""
    index_uuid: bytes = b""
    """16 bytes for a new fragment reuse index; empty without `reuse`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowFacts:
    """The input of a rebase that follows rows."""

    latest_version: int
    read: Manifest
    """The excerpt of our read version."""
    latest: Callable[[Collection[int]], Sequence[DataFragment]]
    """The fragments with these ids that the latest version has."""
    theirs: Sequence[tuple[int, Footprint]]
    """By version since our read version, ascending, the part of its footprint that a rebase needs."""
    trusts_all: bool = False
    """Whether the Rewrites of all writers count as in order (`MovedGroup.doubt`)."""
    file_ids: Iterator[int]
    """Random 64-bit numbers for the names of new deletion files."""


class DeletionRead(NamedTuple):
    """A fragment whose deleted rows are to be read."""

    fragment: DataFragment
    is_staged: bool = False
    """Whether our transaction names the deletion file, and no committed version does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRows:
    """The rows that a rebase has followed through Rewrites."""

    rows: int = 0
    """The number of rows, however many Rewrites moved each."""
    versions: tuple[int, ...] = ()
    """The versions of the Rewrites, ascending; empty for a Rewrite of ours that took over what others deleted."""

    def __str__(self) -> str:
        rows, them, be, were = (
            ("1 row", "it", "is", "was") if self.rows == 1 else (f"{self.rows} rows", "them", "are", "were")
        )
        if not self.versions:
            return f"{rows} that others deleted meanwhile {be} deleted in the new fragments, too"
        if len(self.versions) == 1:
            return f"{rows} {were} followed to where version {self.versions[0]} moved {them}"
        return f"{rows} {were} followed through versions {listed(self.versions)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebasedTransaction:
    """The transaction to commit, and the files that must be written before it."""

    transaction: Transaction
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The content of each file, by key."""
    followed: FollowedRows | None = None
    note: str = ""
    """What the rebase changed, for people; empty if there is nothing to say."""


FollowingRebase = Generator[Sequence[DeletionRead], Sequence[BitMap], RebasedTransaction | RowConflict]
"""A rebase that reads on its way: it yields the fragments whose deleted rows it needs, and is sent these rows."""


def copied(transaction: Transaction) -> Transaction:
    """A copy that the caller may change."""
    copy = Transaction()
    copy.CopyFrom(transaction)
    return copy
