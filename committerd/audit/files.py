"""Checks that a version holds each data file of its own Append exactly once.

A manifest may list 90,000 fragments. If it begins with the fragments of the version before, only the fragments behind
those are decoded; the files of the others are known by their hashes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from committerd.errors import CorruptTable
from committerd.lance.format.fragment_list import cut
from committerd_common.messages import DataFile, DecodeError, Manifest, Transaction

Place = tuple[int, str]


class HeldFiles:
    """The data files of the last version that was checked."""

    def __init__(self) -> None:
        self.fragments = b""
        """The fragments of that version, as protobuf encodes them."""
        self._places: set[int] | None = set()
        """The hashes of the places of that version's files; None = not known."""

    def misplaced(self, transaction: Transaction | None, fragments: bytes) -> tuple[str, ...]:
        """The paths of the data files that the next version's Append adds but the version does not hold exactly once.

        `fragments` are the version's fragments, as protobuf encodes them. Raises `CorruptTable` (`manifest_bytes`) for
        new fragments that can't be decoded.
        """
        before, self.fragments = self.fragments, fragments
        follows = fragments.startswith(before)
        brought = _brought(transaction)
        if not brought:
            added = _places(fragments[len(before) :] if follows else fragments)
            if follows and self._places is not None:
                self._places.update(map(hash, added))
            else:
                self._places = None
                deque(added, maxlen=0)
            return ()
        held = self._held(before if follows else b"", fragments, brought)
        return tuple(sorted(path for base, path in brought if held[base, path] != 1))

    def _held(self, before: bytes, fragments: bytes, brought: set[Place]) -> Counter[Place]:
        """The number of times that each file of `brought` is in `fragments`, which begin with `before`."""
        if not before or self._places is None:
            self._places = {hash(place) for place in _places(before)}
        once_before = not self._places.isdisjoint(map(hash, brought))
        held = Counter[Place]()
        for place in _places(fragments[len(before) :]):
            if place in brought:
                held[place] += 1
            self._places.add(hash(place))
        return Counter(place for place in _places(fragments) if place in brought) if once_before else held


def _brought(transaction: Transaction | None) -> set[Place]:
    if transaction is None or transaction.WhichOneof("operation") != "append":
        return set()
    return {_place(file) for fragment in transaction.append.fragments for file in fragment.files}


def _places(fragments: bytes) -> Iterator[Place]:
    for part in cut(fragments):
        try:
            decoded = Manifest.FromString(part)
        except DecodeError as error:
            raise CorruptTable(f"its fragments can't be decoded: {error}", code="manifest_bytes") from error
        for fragment in decoded.fragments:
            for file in fragment.files:
                yield _place(file)


def _place(file: DataFile) -> Place:
    """The id of the file's base (-1 = the table itself), and its path below that base."""
    return file.base_id if file.HasField("base_id") else -1, file.path
