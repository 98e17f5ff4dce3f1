"""Caches that are bounded in bytes and drop what was used least recently.

What they have never changes in the store: a version does not, a deletion file does not once a version names it (its
name has a random number), and a writer that changes a fragment reuse index gives it a new uuid.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from pyroaring import BitMap

from committerd.lance.format.fragment_reuse import Content
from committerd.lance.format.manifest_file import ManifestFile
from committerd.table.budget import Budget
from committerd_common.messages import DataFragment, IndexMetadata

DELETION_VECTOR_BYTES_MAX = 32 * 1024 * 1024
REUSE_BYTES_MAX = 32 * 1024 * 1024

_DECODED_FACTOR = 4
"""Memory in bytes per serialized byte of a decoded message, with the objects around it."""
_REFERENCE_BYTES = 8
_MESSAGE_BYTES = 100
"""Memory of a decoded message of a reuse index beyond its encoded size."""
_VECTOR_BYTES = 500
"""Memory of a deletion vector beyond its containers: the key, the objects, and the slot in the dictionary."""
_CONTAINER_BYTES = 32
"""Memory of one container of a bitmap beyond its values."""

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Cache(Generic[_K, _V]):
    """Values by key. A value that is larger than the bound is not cached."""

    def __init__(self, bytes_max: int, budget: Budget | None = None) -> None:
        """`budget`: bounds this cache and others together; None = this one is by itself."""
        self._bytes_max = bytes_max
        self._share = (budget or Budget(bytes_max)).share(self)
        self._values: OrderedDict[_K, tuple[_V, int]] = OrderedDict()
        """Least recently used first, each with its size in bytes."""
        self.bytes = 0
        """Estimated memory of all values, in bytes."""

    def get(self, key: _K) -> _V | None:
        """Return a value, or None, and mark it as the most recently used."""
        known = self._values.get(key)
        if known is None:
            return None
        self._values.move_to_end(key)
        self._share.use(self.bytes)
        return known[0]

    def put(self, key: _K, value: _V, size: int) -> None:
        """Add or replace a value that takes this many bytes."""
        if size > self._bytes_max:
            return
        _, before = self._values.pop(key, (None, 0))
        self._values[key] = value, size
        self.bytes += size - before
        self.shrink(self.bytes - self._bytes_max)
        self._share.use(self.bytes)

    def shrink(self, by: int) -> int:
        """Drop this many bytes or more, what was used least recently first. Returns the bytes that are left."""
        bound = self.bytes - by
        while self._values and self.bytes > bound:
            _, (_, dropped) = self._values.popitem(last=False)
            self.bytes -= dropped
        return self.bytes

    def clear(self) -> None:
        """Drop all values."""
        self._values.clear()
        self.bytes = 0
        self._share.use(0)


class DeletionVectorCache(Cache[tuple[str, str], BitMap]):
    """The deleted rows that deletion files hold: those read, and those written. No caller changes a bitmap in place."""

    def __init__(
        self,
        bytes_max: int = DELETION_VECTOR_BYTES_MAX,
        budget: Budget | None = None,
        *,
        note: Callable[[bool], None] = lambda found: None,
    ) -> None:
        """`budget`: as for `Cache`. `note`: called at each look-up with whether the content was found."""
        super().__init__(bytes_max, budget)
        self._note = note

    def rows(self, uri: str, key: str, fragment: DataFragment) -> BitMap | None:
        """The deleted rows of a fragment with deletion file `key` in store `uri`; None if none that fit are cached."""
        rows = self.get((uri, key))
        if rows is not None and not _fits(rows, fragment):
            rows = None
        self._note(rows is not None)
        return rows

    def add(self, uri: str, key: str, rows: BitMap) -> None:
        """Add the content of a deletion file that was read or is written."""
        facts = rows.get_statistics()
        values = (
            facts["n_bytes_array_containers"] + facts["n_bytes_bitset_containers"] + facts["n_bytes_run_containers"]
        )
        self.put((uri, key), rows, int(values + _CONTAINER_BYTES * facts["n_containers"] + _VECTOR_BYTES))


class ReuseCache(Cache[bytes, tuple[IndexMetadata, Content]]):
    """The content of fragment reuse indices. Each version is built with that of the version below it."""

    def content(self, index: IndexMetadata) -> Content | None:
        """The content of an index, which no caller changes; None if it is not cached for this very index."""
        known = self.get(index.uuid.uuid)
        return known[1] if known is not None and (known[0] is index or known[0] == index) else None

    def add(self, index: IndexMetadata, content: Content) -> None:
        """Add the content of an index of a version."""
        groups = [group for version in content.versions for group in version.groups]
        fragments = sum(len(group.old_fragments) + len(group.new_fragments) for group in groups)
        messages = len(content.versions) + len(groups) + fragments
        size = index.ByteSize() + content.ByteSize() + _MESSAGE_BYTES * messages
        self.put(index.uuid.uuid, (index, content), size)


class ManifestCache:
    """Manifests by version, bounded in their number too.

    A version of 100,000 fragments shares all but a few chunks of encoded fragments with the version before it
    (`FragmentList`). A chunk counts once towards the bound, however many versions share it.
    """

    def __init__(self, *, versions_max: int, bytes_max: int, budget: Budget | None = None) -> None:
        """`bytes_max` bounds all versions but the newest, which always stays. `budget`: as for `Cache`."""
        self._share = (budget or Budget(bytes_max)).share(self)
        self._versions_max = versions_max
        self._bytes_max = bytes_max
        self._files: OrderedDict[int, ManifestFile] = OrderedDict()
        """By version, least recently used first."""
        self._sharers: Counter[int] = Counter()
        """Number of versions that share a chunk of fragments, by the chunk's `id`."""
        self._newest_bytes = 0
        self.bytes = 0
        """Estimated memory of the versions, in bytes."""

    def __contains__(self, version: int) -> bool:
        return version in self._files

    def get(self, version: int) -> ManifestFile | None:
        """Return one version, or None, and mark it as the most recently used."""
        file = self._files.get(version)
        if file is not None:
            self._files.move_to_end(version)
            self._share.use(self._share.bytes)
        return file

    def put(self, version: int, file: ManifestFile) -> None:
        """Add a version; drop the least recently used ones while a bound is exceeded."""
        if version in self._files:
            self._drop(version)
        self._files[version] = file
        self.bytes += _own_bytes(file)
        for chunk in file.fragments.chunks:
            self._sharers[id(chunk)] += 1
            if self._sharers[id(chunk)] == 1:
                self.bytes += len(chunk.body)
        self._newest_bytes = _own_bytes(file) + file.fragments.size
        while len(self._files) > self._versions_max:
            self._drop(next(iter(self._files)))
        self._share.use(self.shrink(self.bytes - self._newest_bytes - self._bytes_max))

    def shrink(self, by: int) -> int:
        """As `Cache.shrink`; the version that was used last stays, and does not count."""
        bound = self.bytes - by
        while len(self._files) > 1 and self.bytes > bound:
            self._drop(next(iter(self._files)))
        return max(0, self.bytes - self._newest_bytes)

    def clear(self) -> None:
        """Drop all versions."""
        self._files.clear()
        self._sharers.clear()
        self.bytes = 0
        self._share.use(0)

    def _drop(self, version: int) -> None:
        file = self._files.pop(version)
        self.bytes -= _own_bytes(file)
        for chunk in file.fragments.chunks:
            self._sharers[id(chunk)] -= 1
            if not self._sharers[id(chunk)]:
                del self._sharers[id(chunk)]
                self.bytes -= len(chunk.body)


def _own_bytes(file: ManifestFile) -> int:
    """Memory of a version in bytes, without its chunks of fragments."""
    decoded = file.outline.ByteSize() + file.index_section.ByteSize() + len(file.transaction_bytes or b"")
    return _DECODED_FACTOR * decoded + _REFERENCE_BYTES * len(file.fragments.chunks)


def _fits(rows: BitMap, fragment: DataFragment) -> bool:
    """Whether the rows are as many as the fragment says, and are rows of it."""
    count = fragment.deletion_file.num_deleted_rows
    return len(rows) == (count or len(rows)) and not (0 < fragment.physical_rows <= (rows.max() if rows else -1))
