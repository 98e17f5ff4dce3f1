"""The `ObjectStore` port: the operations of a store that a committer needs. This package's other modules implement it.

Expected alternatives are return values (`Exists`, `None`). Failures are raised as exceptions of `committerd.errors`,
never as exceptions of an SDK.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from committerd.concurrency import map_each
from committerd.errors import InvalidRequest, ObjectUnreadable

_READS_AT_ONCE = 256
"""Maximum number of objects to read at the same time. A store with fewer connections queues the requests."""


@dataclass(frozen=True, slots=True)
class Created:
    """Put result: the key was free, and now holds our object."""


@dataclass(frozen=True, slots=True)
class Exists:
    """Put result: the key was taken, and its object is unchanged.

    Our own earlier attempt may have created the object, so the caller must read it back.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The last bytes of an object."""

    body: bytes
    size: int
    """Size of the whole object, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEntry:
    """An object in a listing."""

    key: str
    size: int
    """Size of the object in bytes."""
    modified_ms: int
    """When it was last written: Unix milliseconds, by the clock of the store."""


TailOrError = Tail | ObjectUnreadable | InvalidRequest | None
"""The end of one of several objects, or what is wrong with that object; None = it does not exist."""


Content = bytes | Sequence[bytes]
"""The bytes of an object, in one piece or in parts, one behind the other. A large manifest is put in parts, because it
shares most of them with other versions: to join 10 MB takes 5 ms, in which nothing else is computed.
"""


def in_one_piece(content: Content) -> bytes:
    """The bytes of the whole object, for stores that can't write parts."""
    return content if isinstance(content, bytes) else b"".join(content)


def require_below_root(key: str) -> None:
    """Raise `InvalidRequest` (`path_invalid`) for a key that is not a path below the table's root."""
    if "\0" in key or any(segment in ("", ".", "..") for segment in key.split("/")):
        raise InvalidRequest(
            f"{key[:200]!r} is not a path below the table's root: "
            "it must be relative, without `.`, `..` or empty segments",
            code="path_invalid",
        )


async def tail_by_size(store: ObjectStore, key: str, size: int) -> Tail | None:
    """`ObjectStore.get_tail` without a suffix range: for servers that have none, and for empty objects.

    Sends up to two requests: for the object's size, and for the range that ends there.
    """
    whole = await store.head(key)
    if whole is None:
        return None
    body = await store.get_range(key, max(whole - size, 0), whole) if whole else b""
    return None if body is None else Tail(body=body, size=whole)


async def tails_of_each(
    get_tail: Callable[[str, int], Awaitable[Tail | None]], keys: Sequence[str], size: int
) -> Sequence[TailOrError]:
    """`ObjectStore.get_tails` for a store that reads one object at a time: many reads at once."""

    async def read(key: str) -> TailOrError:
        try:
            return await get_tail(key, size)
        except (ObjectUnreadable, InvalidRequest) as error:
            return error

    return await map_each(keys, read, at_once=_READS_AT_ONCE)


class ObjectStore(Protocol):
    """The directory of one table. Keys are relative to the table's root, with `/` between segments.

    Every method may raise `StoreUnavailable` (nothing changed). `get`, `get_range`, `get_tail`, `head` and `delete`
    raise its subclass `ObjectUnreadable` when the store responds but refuses to read or delete this object. Methods
    raise `InvalidRequest` (`path_invalid`) for a key under which no object can exist.
    """

    uri: str
    """The table's root as people write it; for logs and messages."""
    lists_whole_folders: bool
    """Whether `list` sends requests for the whole folder, whatever its limit, because their results have no order."""

    async def get(self, key: str) -> bytes | None:
        """Return the whole object; None when it does not exist."""

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return bytes `start` to `end` (half-open), fewer if the object ends before; None when it does not exist."""

    async def get_tail(self, key: str, size: int) -> Tail | None:
        """Return at most the last `size` bytes, and the object's size; None when it does not exist."""

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        """As `get_tail` of each key, in order; a repeated key is read again.

        An error about one object is returned in its place.
        """

    async def head(self, key: str) -> int | None:
        """Return the object's size in bytes; None when it does not exist."""

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        """List the keys directly in the folder `prefix` (which ends with `/`), ascending in byte order.

        Returns only keys after `start_after` (a full key), and at most `limit` keys. Does not recurse. A missing folder
        has no keys.
        """

    def walk(self, prefix: str) -> AsyncIterator[Sequence[ObjectEntry]]:
        """Yield all objects below the folder `prefix` (which ends with `/`), in batches, in no order.

        Includes temporary files that `list` leaves out. A missing folder has no objects. Raises `StoreUnavailable`.
        """

    async def put(self, key: str, body: bytes) -> None:
        """Write the object atomically, replacing an existing one."""

    async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
        """Create the object atomically if the key is free.

        Linearizable: of any number of concurrent callers exactly one gets `Created`. Raises `PutUnknown` when the
        response was lost; the object may then exist, or appear later.
        """

    async def copy(self, source: str, target: str) -> bool:
        """Copy an object within the table, replacing the target; False when the source does not exist."""

    async def delete(self, key: str) -> None:
        """Delete an object that this process has staged; a missing object is not an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """The entry of one version in an external manifest store."""

    version: int
    key: str
    """Key of the manifest, relative to the table's root: its final key, or a staging key."""
    size: int | None = None
    """Size of the manifest in bytes; None when the entry does not have it."""


class ManifestStore(Protocol):
    """The entries of one table in an external manifest store. Creating a version's entry commits the version.

    Reads are linearizable. Every method may raise `StoreUnavailable` (nothing changed), and `CorruptTable` for an entry
    that does not have Lance's form.
    """

    async def get(self, version: int) -> ManifestEntry | None:
        """Return the entry of a version; None when it does not exist."""

    async def latest(self) -> ManifestEntry | None:
        """Return the entry of the highest version that is not detached; None when there are no entries."""

    async def put_if_absent(self, entry: ManifestEntry) -> Created | Exists:
        """Create the entry of a version if it has none.

        Of any number of concurrent callers exactly one gets `Created`. Raises `PutUnknown` when the response was
        lost; the entry may then exist, or appear later.
        """

    async def replace(self, entry: ManifestEntry) -> bool:
        """Replace the entry of a version; False, and nothing is written, when it does not exist.

        Idempotent, so a lost response is a `StoreUnavailable`.
        """

    async def delete(self, version: int, *, key: str) -> None:
        """Delete the entry of a version if it names this key; otherwise there is nothing to do. Idempotent."""
