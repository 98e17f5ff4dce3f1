"""The input and the result of a rebase.

A rebase changes our transaction so that it applies on top of the versions since its read version. Each operation that
can be rebased has a function for it (`Operation.rebase`). The function reads nothing: the caller reads the data that
the operation needs (`Operation.needs`), and passes it as `RebaseFacts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.fragment_reuse import Content
from committerd.lance.rows.deletions import RowConflict as RowConflict
from committerd_common.messages import DataFragment, Transaction


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
    """The footprints of the versions since our read version, ascending; without Appends, which change nothing that
    exists.
    """
    deletions: Sequence[tuple[DeletionMerge, Deletions]] = ()
    file_ids: Iterator[int]
    """Random 64-bit numbers for the names of new deletion files."""
    reuse: ReuseContents | None = None
    """None if ours adds no fragment reuse index, or if theirs added nothing to it."""
    index_uuid: bytes = b""
    """16 bytes for a new fragment reuse index; empty without `reuse`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """The transaction to commit, and the files that must be written before it."""

    transaction: Transaction
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The content of each file, by key."""


def copied(transaction: Transaction) -> Transaction:
    """A copy that the caller may change."""
    copy = Transaction()
    copy.CopyFrom(transaction)
    return copy
