"""A cache of manifests, bounded in bytes.

A version of 100,000 fragments shares all but a few chunks of encoded fragments with the version before it
(`FragmentList`). A chunk counts once towards the bound, however many versions share it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from committerd.lance.format.manifest_file import ManifestFile

_DECODED_FACTOR = 4
"""Memory in bytes per serialized byte of a decoded message, with the objects around it."""
_REFERENCE_BYTES = 8


class KeptVersions:
    """The most recently used manifests, by version, within bounds on their count and bytes."""

    def __init__(self, *, versions_max: int, bytes_max: int) -> None:
        """`bytes_max` bounds all versions but the newest, which is always kept."""
        self._versions_max = versions_max
        self._bytes_max = bytes_max
        self._files: OrderedDict[int, ManifestFile] = OrderedDict()
        """By version, least recently used first."""
        self._sharers: Counter[int] = Counter()
        """Number of versions that share a chunk of fragments, by the chunk's `id`."""
        self.bytes = 0
        """Estimated memory of the kept versions, in bytes."""

    def __contains__(self, version: int) -> bool:
        return version in self._files

    def get(self, version: int) -> ManifestFile | None:
        """Return one version, or None, and mark it as the most recently used."""
        file = self._files.get(version)
        if file is not None:
            self._files.move_to_end(version)
        return file

    def keep(self, version: int, file: ManifestFile) -> None:
        """Add a version; drop the least recently used ones while a bound is exceeded."""
        if version in self._files:
            self._drop(version)
        self._files[version] = file
        self.bytes += _own_bytes(file)
        for chunk in file.fragments.chunks:
            self._sharers[id(chunk)] += 1
            if self._sharers[id(chunk)] == 1:
                self.bytes += len(chunk.body)
        bound = self._bytes_max + _own_bytes(file) + file.fragments.size
        while len(self._files) > 1 and (len(self._files) > self._versions_max or self.bytes > bound):
            self._drop(next(iter(self._files)))

    def clear(self) -> None:
        """Drop all versions."""
        self._files.clear()
        self._sharers.clear()
        self.bytes = 0

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
