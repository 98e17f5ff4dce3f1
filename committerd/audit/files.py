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

FileKey = tuple[int, str]


class HeldFiles:
    """The data files of the last version that was checked."""

    def __init__(self) -> None:
        self.fragments = b""
        """The fragments of that version, as protobuf encodes them."""
        self._file_hashes: set[int] | None = set()
        """The hashes of the keys of that version's files; None = not known."""

    def misplaced(self, transaction: Transaction | None, fragments: bytes) -> tuple[str, ...]:
        """The paths of the data files that the next version's Append adds but the version does not hold exactly once.

        `fragments` are the version's fragments, as protobuf encodes them. Raises `CorruptTable` (`manifest_bytes`) for
        new fragments that can't be decoded.
        """
        before, self.fragments = self.fragments, fragments
        follows = fragments.startswith(before)
        brought = _brought(transaction)
        if not brought:
            added = _file_keys(fragments[len(before) :] if follows else fragments)
            if follows and self._file_hashes is not None:
                self._file_hashes.update(map(hash, added))
            else:
                self._file_hashes = None
                deque(added, maxlen=0)
            return ()
        held = self._held(before if follows else b"", fragments, brought)
        return tuple(sorted(path for base, path in brought if held[base, path] != 1))

    def _held(self, before: bytes, fragments: bytes, brought: set[FileKey]) -> Counter[FileKey]:
        """The number of times that each file of `brought` is in `fragments`, which begin with `before`."""
        if not before or self._file_hashes is None:
            self._file_hashes = {hash(key) for key in _file_keys(before)}
        once_before = not self._file_hashes.isdisjoint(map(hash, brought))
        held = Counter[FileKey]()
        for key in _file_keys(fragments[len(before) :]):
            if key in brought:
                held[key] += 1
            self._file_hashes.add(hash(key))
        return Counter(key for key in _file_keys(fragments) if key in brought) if once_before else held


def _brought(transaction: Transaction | None) -> set[FileKey]:
    if transaction is None or transaction.WhichOneof("operation") != "append":
        return set()
    return {_file_key(file) for fragment in transaction.append.fragments for file in fragment.files}


def _file_keys(fragments: bytes) -> Iterator[FileKey]:
    for part in cut(fragments):
        try:
            decoded = Manifest.FromString(part)
        except DecodeError as error:
            raise CorruptTable(f"its fragments can't be decoded: {error}", code="manifest_bytes") from error
        for fragment in decoded.fragments:
            for file in fragment.files:
                yield _file_key(file)


def _file_key(file: DataFile) -> FileKey:
    """The id of the file's base (-1 = the table itself), and its path below that base."""
    return file.base_id if file.HasField("base_id") else -1, file.path
