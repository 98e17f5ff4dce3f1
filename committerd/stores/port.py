"""The store as a committer uses it: the `ObjectStore` port, which the other modules of this package implement.

Expected alternatives are return values (`Exists`, `None`); what
goes wrong is raised as one of `committerd.errors`, never as an exception of an SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from committerd.errors import InvalidRequest, ObjectUnreadable, OutcomeUnknown, StoreUnavailable


@dataclass(frozen=True, slots=True)
class Created:
    """The key was free and now holds our object."""


@dataclass(frozen=True, slots=True)
class Exists:
    """The key was taken; what it holds is unchanged. It may be our own earlier try: read back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The last bytes of an object."""

    body: bytes
    size: int
    """Of the whole object, in bytes."""


class ObjectStore(Protocol):
    """One table's directory. Keys are relative to the table's root, with `/` between segments.

    Every method may raise `StoreUnavailable` (nothing changed). `get`, `get_range`, `get_tail` and `head` raise its
    kind `ObjectUnreadable` where the store answers and refuses this object, and `InvalidRequest` (`path_invalid`) for
    a key under which no object can be.
    """

    uri: str
    """The table's root as people know it; for logs and messages."""

    async def get(self, key: str) -> bytes | None:
        """The whole object; None when there is none."""
        ...

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Bytes `start` to `end` (half-open), fewer where the object ends; None when there is none."""
        ...

    async def get_tail(self, key: str, size: int) -> Tail | None:
        """At most the last `size` bytes, and the object's size; None when there is none."""
        ...

    async def head(self, key: str) -> int | None:
        """The object's size in bytes; None when there is none."""
        ...

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        """Keys directly below the folder `prefix` (it ends with `/`), ascending by bytes.

        Only those after `start_after` (a full key), at most `limit`. No recursion; a missing folder is empty.
        """
        ...

    async def put(self, key: str, body: bytes) -> None:
        """Write the object, replacing what is there; never visible in part."""
        ...

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        """Create the object, or learn that the key is taken; never visible in part.

        Linearizable: of any number of concurrent callers exactly one gets `Created`. Raises `OutcomeUnknown` when
        the answer was lost; the object may then exist, or appear later.
        """
        ...

    async def copy(self, source: str, target: str) -> bool:
        """Copy within the table, replacing the target; False when there is no source."""
        ...

    async def delete(self, key: str) -> None:
        """Delete an object that this process staged itself; no error when there is none."""
        ...

    async def aclose(self) -> None:
        """Release connections."""
        ...


@runtime_checkable
class TakesParts(Protocol):
    """An `ObjectStore` that can write an object from parts, and so spare the copy that joining a large one is."""

    async def put_parts_if_absent(self, key: str, parts: Sequence[bytes]) -> Created | Exists:
        """As `put_if_absent` of the parts one after the other."""
        ...


Answer = Created | Exists | StoreUnavailable | OutcomeUnknown
"""What came of one `put_if_absent`."""


@runtime_checkable
class TakesSeveral(Protocol):
    """An `ObjectStore` that writes and looks at objects so quickly that asking for each apart would cost more."""

    async def head_several(self, keys: Sequence[str]) -> Sequence[int | ObjectUnreadable | InvalidRequest | None]:
        """As `head` of each, in their order; what is wrong with one key is its answer."""
        ...

    async def put_several(self, objects: Sequence[tuple[str, bytes]]) -> None:
        """As `put` of each (key, body), in any order. When it raises, some may have been written."""
        ...

    async def put_in_turn_if_absent(
        self, objects: Sequence[tuple[str, Sequence[bytes]]], *, as_long_as: Callable[[], bool]
    ) -> Sequence[Answer]:
        """As `put_if_absent` of each (key, parts) in turn, up to the first that is not created.

        Returns the answer of each that was tried, errors too: all but the last are `Created`. The first is always
        tried, a further one only as long as that says, which is asked in a thread.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """What an external manifest store says of one version."""

    version: int
    key: str
    """Where the manifest lies, relative to the table's root: at its place, or staged beside it."""
    size: int | None = None
    """Of the manifest in bytes; None where the entry does not tell."""


class ManifestStore(Protocol):
    """One table's entries in an external manifest store: the first entry of a version is its commit.

    Reads are linearizable. Every method may raise `StoreUnavailable` (nothing changed), and `CorruptTable` for an
    entry that is none of Lance's.
    """

    async def get(self, version: int) -> ManifestEntry | None:
        """The entry of a version; None when there is none."""
        ...

    async def latest(self) -> ManifestEntry | None:
        """The entry of the highest version, detached ones aside; None when there is none."""
        ...

    async def put_if_absent(self, entry: ManifestEntry) -> Created | Exists:
        """Create the entry of a version, or learn that there is one.

        Of any number of concurrent callers exactly one gets `Created`. Raises `OutcomeUnknown` when the answer was
        lost; the entry may then exist, or appear later.
        """
        ...

    async def replace(self, entry: ManifestEntry) -> bool:
        """Replace the entry of a version; False, and nothing is written, when there is none.

        It can be done again, so a lost answer is `StoreUnavailable`.
        """
        ...

    async def aclose(self) -> None:
        """Release connections."""
        ...


@runtime_checkable
class ExternallyDecided(Protocol):
    """An `ObjectStore` that leaves it to a `ManifestStore` which manifest becomes a version."""

    async def conditions_hold(self) -> bool:
        """Whether the manifest store refuses a second entry of the latest version. It is left as it is.

        True also where there is no version to try it on.
        """
        ...
