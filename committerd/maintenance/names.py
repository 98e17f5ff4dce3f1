"""The files that a version or a transaction names, as keys.

An index is named by its folder, which ends with `/`, and stands for all files in it. A data file, in the same way,
stands for the blobs in the folder with its name. Files below other base paths are named as if they were the table's
own: that may keep a file that nobody needs, and never deletes a file that somebody needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any
from uuid import UUID

from committerd.errors import CorruptTable, UnsupportedTable
from committerd.lance.format.feature_flags import SUPPORTED, bits
from committerd.lance.format.fragment_list import cut
from committerd.lance.format.manifest_file import ManifestFile
from committerd_common.messages import (
    DataFile,
    DataFragment,
    DecodeError,
    DeletionFile,
    IndexMetadata,
    Manifest,
    Transaction,
)
from committerd_common.paths import (
    DATA,
    DELETIONS,
    INDICES,
    TRANSACTIONS,
    data_key,
    deletion_key,
    index_prefix,
    transaction_key,
)
from committerd_common.unknown_fields import has_unknown_fields

_ENDINGS = {DATA: (".lance",), DELETIONS: (".arrow", ".bin"), TRANSACTIONS: (".txn",)}
"""The endings of the files in each folder. Others are not Lance's, and stay."""

_DATA_FILE_NAMES = re.compile(rb"[A-Za-z0-9_-]+\.lance")
_TAG_AND_LENGTH_BYTES = 3
RewrittenIndex = Transaction.Rewrite.RewrittenIndex


class Names:
    """The files that the versions name that were added."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def add(self, file: ManifestFile) -> None:
        """Add the files of one version. Raises `UnsupportedTable` if it may name files in an unknown way."""
        self.add_parts(file.outline, file.indices, file.fragments.bodies())

    def add_parts(self, outline: Manifest, indices: Iterable[IndexMetadata], fragments: Iterable[bytes]) -> None:
        """Add the files of these parts of the version's fragments, of its indices, and its transaction file.

        Raises `UnsupportedTable` as `add`, and `CorruptTable` for fragments that can't be decoded.
        """
        require_known(outline)
        for body in fragments:
            decoded = _decoded(body)
            self.keys.update(_of_fragments(decoded.fragments))
            size = decoded.ByteSize()
            decoded.DiscardUnknownFields()
            if decoded.ByteSize() != size:
                raise _unknown(outline, "its fragments have unknown fields")
        self.keys.update(index_prefix(index.uuid.uuid) for index in indices)
        if outline.transaction_file:
            self.keys.add(transaction_key(outline.transaction_file))


def _decoded(fragments: bytes) -> Manifest:
    try:
        return Manifest.FromString(fragments)
    except DecodeError as error:
        raise CorruptTable(f"its fragments can't be decoded: {error}", code="manifest_bytes") from error


def new_parts(fragments: bytes, above: bytes) -> Iterator[bytes]:
    """Cut a version's fragments into parts, and leave out each part that the version above has in the same place."""
    if not above.startswith(fragments):
        for own, other in zip_longest(cut(fragments), cut(above), fillvalue=b""):
            if not other.startswith(own):
                yield own


def require_known(outline: Manifest) -> None:
    """Raise `UnsupportedTable` (`feature_flags`, `unknown_fields`) if the version may name files in an unknown way."""
    unknown = (outline.reader_feature_flags | outline.writer_feature_flags) & ~SUPPORTED
    if unknown:
        raise _unknown(outline, f"it needs feature flag {', '.join(map(str, bits(unknown)))}")
    size = outline.ByteSize()
    known = Manifest()
    known.CopyFrom(outline)
    known.DiscardUnknownFields()
    if known.ByteSize() != size:
        raise _unknown(outline, "its manifest has unknown fields")


def named_by(message: Any) -> Iterator[str]:
    """The files that a transaction names, wherever in it."""
    match message:
        case DataFragment():
            yield from _of_fragments([message])
        case DataFile():
            yield data_key(message.path)
        case IndexMetadata():
            yield from _folder(message.uuid.uuid)
        case RewrittenIndex():
            yield from _folder(message.new_id.uuid)
        case _:
            if isinstance(message, Transaction) and has_unknown_fields(message):
                yield from _perhaps_named(message.SerializeToString())
            for field, value in message.ListFields():
                if field.message_type is None or field.message_type.GetOptions().map_entry:
                    continue
                for one in value if field.is_repeated else (value,):
                    yield from named_by(one)


def _perhaps_named(body: bytes) -> Iterator[str]:
    """The data files that a transaction may name in fields that committerd does not know: all that look like a name.

    The tag and the length before a name may look like letters of it.
    """
    for found in _DATA_FILE_NAMES.findall(body):
        for before in range(_TAG_AND_LENGTH_BYTES + 1):
            yield data_key(found[before:].decode())


def owner(key: str) -> str | None:
    """The name that keeps the file with this key; None for a file that maintenance never deletes by its name."""
    folder, _, rest = key.partition("/")
    parts = rest.split("/")
    if f"{folder}/" == INDICES:
        return f"{INDICES}{parts[0]}/" if len(parts) > 1 else None
    if f"{folder}/" == DATA and len(parts) == 2 and rest.endswith(".blob"):
        return f"{DATA}{parts[0]}.lance"
    endings = _ENDINGS.get(f"{folder}/")
    if endings is None or len(parts) > 1:
        return None
    return key if rest.endswith(endings) or is_temporary(key) else None


def is_temporary(key: str) -> bool:
    """Whether it is a file that a writer renames when it is complete.

    Lance and committerd begin such names with `.tmp`; object_store, with which Lance writes, ends them with `#1`.
    """
    name = key.rpartition("/")[2]
    head, mark, number = name.rpartition("#")
    return name.startswith(".tmp") or (bool(head) and mark == "#" and number.isdecimal())


def _of_fragments(fragments: Iterable[DataFragment]) -> Iterator[str]:
    for fragment in fragments:
        for file in fragment.files:
            yield data_key(file.path)
        if fragment.HasField("deletion_file") and fragment.deletion_file.file_type in _DELETION_FILES:
            yield deletion_key(fragment.id, fragment.deletion_file, staged=True)


_DELETION_FILES = frozenset(DeletionFile.DeletionFileType.values())


def _folder(uuid: bytes) -> Iterator[str]:
    if len(uuid) == len(UUID(int=0).bytes):
        yield index_prefix(uuid)


def _unknown(outline: Manifest, what: str) -> UnsupportedTable:
    return UnsupportedTable(
        f"version {outline.version} can't be cleaned up: {what}, so it may name files that this version of committerd "
        "would delete. Update committerd",
        code="unknown_to_maintenance",
    )
