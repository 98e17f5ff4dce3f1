"""What a rebase goes by, and what comes of it.

A rebase changes our transaction so that it applies on top of what was committed since it was read. Each operation that
can be rebased has a function for it (`Operation.rebase`). It reads nothing: the caller reads what the operation says it
needs, and passes it as `RebaseFacts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.fragment_reuse import Content
from committerd_common.messages import DataFragment, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionMerge:
    """One fragment in which both sides deleted rows, in its three states. Each state may lack a deletion file."""

    read: DataFragment
    ours: DataFragment
    latest: DataFragment


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletions:
    """Deleted row offsets of one fragment in its three states."""

    read: BitMap
    ours: BitMap
    latest: BitMap


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseContents:
    """What the fragment reuse index says: the staged one, that of our read version, and that of the latest."""

    ours: Content
    read: Content
    latest: Content


@dataclass(frozen=True, slots=True, kw_only=True)
class RebaseFacts:
    """What a rebase goes by, as far as the operation needs it."""

    latest_version: int
    theirs: Sequence[Footprint] = ()
    """What was committed since our read version, ascending; without Appends, which change nothing that is there."""
    deletions: Sequence[tuple[DeletionMerge, Deletions]] = ()
    file_ids: Iterator[int]
    """Random numbers of 64 bits, for the names of new deletion files."""
    reuse: ReuseContents | None = None
    """None when ours brings no fragment reuse index, or theirs added nothing to it."""
    index_uuid: bytes = b""
    """16 bytes for a new fragment reuse index; empty without `reuse`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """The transaction as it can be committed, and the files that must be written before."""

    transaction: Transaction
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowConflict:
    """Both sides changed the same rows, or nobody can tell whether they did."""

    message: str


def copied(transaction: Transaction) -> Transaction:
    """A copy, to be changed."""
    copy = Transaction()
    copy.CopyFrom(transaction)
    return copy
