"""Keeps the content of fragment reuse indices, within a bound. Each version is built with that of the version below it.

The content of an index never changes: a writer that changes it gives the index a new uuid.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from committerd.lance.format.fragment_reuse import Content
from committerd_common.messages import IndexMetadata

REUSE_BYTES_MAX = 32 * 1024 * 1024
"""Most bytes of kept content. Larger content is read for each version."""

_MESSAGE_BYTES = 100
"""Memory of a decoded message beyond its encoded size."""


class _Kept(NamedTuple):
    made_for: IndexMetadata
    content: Content
    size: int


class KeptReuse:
    """The content of fragment reuse indices, by the uuid of the index, the least recently used dropped first."""

    def __init__(self, bytes_max: int = REUSE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self.bytes = 0
        """Estimated memory of the kept content, in bytes."""

    def get(self, index: IndexMetadata) -> Content | None:
        """The content of an index, which no caller changes; None if it is not kept."""
        kept = self._kept.get(index.uuid.uuid)
        if kept is None or (kept.made_for is not index and kept.made_for != index):
            return None
        self._kept.move_to_end(index.uuid.uuid)
        return kept.content

    def keep(self, index: IndexMetadata, content: Content) -> None:
        """Keep the content of an index of a version."""
        size = index.ByteSize() + content.ByteSize() + _MESSAGE_BYTES * _messages(content)
        if size > self._bytes_max:
            return
        before = self._kept.pop(index.uuid.uuid, None)
        self.bytes += size - (before.size if before is not None else 0)
        self._kept[index.uuid.uuid] = _Kept(index, content, size)
        while self.bytes > self._bytes_max:
            _, dropped = self._kept.popitem(last=False)
            self.bytes -= dropped.size

    def clear(self) -> None:
        """Drop all content."""
        self._kept.clear()
        self.bytes = 0


def _messages(content: Content) -> int:
    return sum(
        1 + sum(1 + len(group.old_fragments) + len(group.new_fragments) for group in version.groups)
        for version in content.versions
    )
