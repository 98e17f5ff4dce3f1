"""What deciding needs to know and does not have at hand: a need for each kind of fact, and how decisions ask for it.

The rules are generators that read nothing themselves. They yield a need and are sent the fact that answers it, so the
same rules run against a store (`table.fetching`), in a test, and in a simulation without one. A fact that can't be read
because of what the record says is thrown in as a `RequestError`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from committerd.errors import CommitterError
from committerd.lance.format.data_file import FileFacts
from committerd.lance.format.manifest_file import ManifestFile
from committerd.stores.port import ObjectStore
from committerd.table.places import Location
from committerd_common.messages import DataFragment, IndexMetadata, Transaction

T_co = TypeVar("T_co", covariant=True)


class DeletionFile(NamedTuple):
    """The deletion file of a fragment."""

    fragment: DataFragment
    location: Location
    is_staged: bool
    """Whether a record names it, and no committed version does."""


class NamedFile(NamedTuple):
    """A file that a transaction names."""

    location: Location
    size: int
    """In bytes, according to the transaction; 0 = the transaction does not give it."""


class FoundFile(NamedTuple):
    """A staged file that exists."""

    size: int
    """In bytes."""
    said: FileFacts | None = None
    """What a data file says of itself; None if it says nothing that is understood."""


class FoundDeletions(NamedTuple):
    """A staged deletion file that was looked at."""

    of: DataFragment
    """The fragment's `physical_rows` and `deletion_file`, for which the file was checked."""
    rows: int
    """The number of rows that it deletes."""
    fault: CommitterError | None = None
    """Why it can't be used; of a file in a base path also why it can't be read from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFacts:
    """What is known of the files that a transaction names."""

    files: Mapping[Location, FoundFile | CommitterError | None] = field(default_factory=dict)
    """None = there is no such file; an error = it can't be read."""
    deletions: Mapping[Location, FoundDeletions] = field(default_factory=dict)

    def with_(self, more: StagedFacts) -> StagedFacts:
        """These facts, updated with more of them."""
        return StagedFacts(files={**self.files, **more.files}, deletions={**self.deletions, **more.deletions})


NOTHING_KNOWN = StagedFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Need: the existence, the sizes and the descriptions of files that a transaction names. Fact: `StagedFacts`."""

    files: Sequence[NamedFile] = ()
    deletions: Sequence[DeletionFile] = ()
    deletion_bytes_max: int
    """The most bytes that its deletion files may have together."""

    def unanswered_by(self, facts: StagedFacts) -> Staged | None:
        """The part of this need that the facts do not answer; None if they answer all of it."""
        files = [one for one in self.files if one.location not in facts.files]
        deletions = [one for one in self.deletions if not _is_found(one, facts)]
        if not files and not deletions:
            return None
        return Staged(files=files, deletions=deletions, deletion_bytes_max=self.deletion_bytes_max)


def _is_found(one: DeletionFile, facts: StagedFacts) -> bool:
    found = facts.deletions.get(one.location)
    return found is not None and found.of == described_part(one.fragment)


def described_part(fragment: DataFragment) -> DataFragment:
    """What a fragment says of its deletion file, and of the rows that the file may delete."""
    return DataFragment(physical_rows=fragment.physical_rows, deletion_file=fragment.deletion_file)


@dataclass(frozen=True, slots=True)
class Rows:
    """Need: the rows that deletion files hold. Fact: a bitmap for each, which nobody changes.

    Throws `InvalidRequest` (`deletion_file`, `missing_file`, `named_bytes`) for a staged file, and `OutdatedRequest`
    for a file that only old versions have, and that a cleanup has removed.
    """

    wanted: Sequence[DeletionFile]
    bytes_max: int
    """The most bytes that the staged ones may have together."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Need: the next few versions above `after`, up to and including `upto`. Fact: `Committed` of each, or a `Gap`."""

    after: int
    upto: int
    largest: int = 0
    """The bytes of the largest version that was read so far; 0 = none was. Of large ones, fewer are read at once."""


@dataclass(frozen=True, slots=True)
class OneVersion:
    """Need: an old version of the table. Fact: its `ManifestFile`; None if it can't be read."""

    number: int


@dataclass(frozen=True, slots=True)
class QueueEntries:
    """Need: the queue entries of these versions. Fact: `Settled` by version; None for one that can't be read."""

    versions: Sequence[int]


@dataclass(frozen=True, slots=True)
class Gone:
    """Need: whether a version no longer exists. Fact: True or False."""

    version: int


@dataclass(frozen=True, slots=True)
class Reuse:
    """Need: the content of the fragment reuse index among these indices. Fact: its `Content`; None if there is none."""

    indices: Sequence[IndexMetadata]
    written: Mapping[str, bytes] = field(default_factory=dict)
    """Bodies of files that are written before the version, by key."""
    is_staged: bool = False
    """Whether a record names the index: then its file must be there."""
    is_old: bool = False
    """Whether it is the index of an old version, whose file a cleanup may have removed."""


@dataclass(frozen=True, slots=True)
class EmptyFolders:
    """Need: which of these folders have no file. Fact: their prefixes."""

    prefixes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Described:
    """Need: what these data files say of themselves. Fact: a `FileDescriptor` for each; None if it says nothing."""

    files: Sequence[Location]


@dataclass(frozen=True, slots=True)
class Source:
    """Need: the version that a Clone clones. Fact: its `ManifestFile`; None if it can't be read.

    Throws `UnsupportedRequest` (`clone_unsupported`).
    """

    clone: Transaction.Clone


@dataclass(frozen=True, slots=True)
class Copies:
    """Need: the objects that a deep Clone of this version copies. Fact: a sequence of `Copy`. Throws as `Source`."""

    clone: Transaction.Clone
    source: ManifestFile


@dataclass(frozen=True, slots=True)
class Copy:
    """One object that a deep Clone copies: from `source` in `store` to `target` in the new table."""

    store: ObjectStore
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class BuiltByPylance:
    """Need: the version that pylance makes of a version and a transaction. Fact: `PylanceBuilt`.

    Throws `UnsupportedRequest` (`pylance_refused`).
    """

    version: int
    transaction: Transaction


class PylanceBuilt(NamedTuple):
    """A version that pylance has built, under a number outside the history."""

    body: bytes
    """Its manifest object."""
    next: bytes | None
    """The manifest object of a commit that changes nothing on top of it; None if pylance can't commit there."""
    refusal: str
    """Why it can't."""


@dataclass(frozen=True, slots=True)
class InThread:
    """Need: that the next step, up to the next need, runs in a thread, because it may take long. Fact: None."""

    size: int
    """The size in bytes of the record that takes long."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Need: that the time from here on is counted for this stage of the commit; empty = for none. Fact: None."""

    name: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Need: that other tasks run before the decision goes on. Fact: None."""


@dataclass(frozen=True, slots=True)
class Enough:
    """Need: whether the version is to end with the records that it has, because others wait for it. Fact: bool."""

    work: int
    """How much it has, as `queue.grouping.work_of` counts it."""


Fact = Staged | Rows | Versions | OneVersion | QueueEntries | Gone | Reuse | EmptyFolders | Described | Source | Copies
Need = Fact | BuiltByPylance | InThread | Checkpoint | Enough | Stage

Steps = Generator[Need, Any, T_co]
"""A decision that asks for facts on its way. See each need for the fact that it is sent."""
