"""Data files that are not committed yet, and tables of any size to commit them to. Making them is not timed.

pylance writes one file of one row; every further file is a copy of it under its own name. All tables of a run share the
folder `data` through a symbolic link, so both sides commit the same files.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from committerd_common.messages import Transaction

APPENDED_ID = -1
"""The id in every row of the files."""
KEYED_ROWS = 4
"""The rows of each file of a keyed pool."""
_MARKS = [0x1234567890ABCDE1 + row * 0x0102030405060709 for row in range(KEYED_ROWS)]
"""The ids in the file that is copied for a keyed pool; each occurs in it once, as 8 bytes."""
READ_VERSION = 1
"""The read version of each staged Append: that of a producer that opened the table once, at the start. So each is
judged against everything committed since.
"""
_NAME_CHARS = 50
_FRAGMENTS, _MAX_FRAGMENT_ID = 2, 11  # fields of the message Manifest
_LENGTH, _FOOTER, _ID = struct.Struct("<I"), struct.Struct("<qhh4s"), struct.Struct("<q")


class WrongTable(AssertionError):
    """A table does not hold what was committed to it, so the figures of that run are worthless."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A number of data files. Their transactions are made without reading the files."""

    folder: str
    count: int
    name: str
    """The name of the file that pylance wrote."""
    fragment: bytes
    """That file as a DataFragment message."""
    metadata: str
    """That file as the JSON of pylance's FragmentMetadata."""

    def file_name(self, number: int) -> str:
        """The name of a file; as long as pylance's names."""
        if not 0 <= number < self.count:
            raise IndexError(f"there are {self.count} data files, and none has the number {number}")
        return _file_name(number)

    def message(self, number: int, *, id: int = 0) -> bytes:
        """The DataFragment with this file."""
        head = b"\x08" + _varint(id) if id else b""
        return head + self.fragment.replace(self.name.encode(), _file_name(number).encode())

    def staged(self, number: int, *, read_version: int = READ_VERSION) -> Transaction:
        """An Append of one file, as a producer stages it."""
        uuid = hashlib.md5(f"{self.folder}/{number}".encode()).hexdigest()
        made = Transaction(read_version=read_version, uuid=_canonical(uuid))
        made.append.fragments.add().ParseFromString(self.message(number))
        return made

    def for_pylance(self, number: int) -> Any:
        """The same file as pylance's FragmentMetadata."""
        from lance.fragment import FragmentMetadata  # imported here: workers that don't run pylance must not load it

        return FragmentMetadata.from_json(self.metadata.replace(self.name, self.file_name(number)))


def _canonical(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _file_name(number: int) -> str:
    return f"{number:08d}".ljust(_NAME_CHARS, "0") + ".lance"


def make_pool(folder: Path, count: int, *, keyed: bool = False) -> Pool:
    """Write the files. `keyed`: each has four rows, whose ids count up from file to file."""
    from lance.fragment import write_fragments

    from committerd_client import staging

    scratch = folder / "template.lance"
    written = write_fragments(rows(_MARKS if keyed else [APPENDED_ID]), str(scratch), mode="create")[0]
    metadata = json.dumps(written.to_json())
    name = json.loads(metadata)["files"][0]["path"]
    body = (scratch / "data" / name).read_bytes()
    files = folder / "data"
    files.mkdir()
    for number in range(count):
        (files / _file_name(number)).write_bytes(_with_keys(body, number) if keyed else body)
    fragment = staging.append([written]).append.fragments[0].SerializeToString()
    assert len(name) == len(_file_name(0)), "pylance's names have another length: a message can't be filled in"
    return Pool(str(files), count, name, fragment, metadata)


def _with_keys(body: bytes, number: int) -> bytes:
    for row, mark in enumerate(_MARKS):
        old = _ID.pack(mark)
        assert body.count(old) == 1, "pylance encodes the ids in another way: they can't be replaced"
        body = body.replace(old, _ID.pack(number * KEYED_ROWS + row))
    return body


def make_table(pool: Pool, uri: Path, *, ids: Iterable[int] = ()) -> None:
    """Make a table with a schema and these rows, at version 1, with pylance."""
    import lance

    if numbers := list(ids):
        (uri / "data").mkdir(parents=True)
        lance.write_dataset(rows(numbers), str(uri))
        for file in (uri / "data").iterdir():
            file.rename(Path(pool.folder, file.name))
        (uri / "data").rmdir()
    else:
        lance.write_dataset(rows([]), str(uri))
    (uri / "data").symlink_to(pool.folder)


def enlarge_table(pool: Pool, uri: Path, fragments: int) -> None:
    """Give a new table this many fragments, one of each file of the pool: rewrites version 1, and writes no data files.

    A commit does not read the files that are already in the table. The manifest is pylance's own with more fields at
    the end of its message, which protobuf allows.
    """
    path = newest_manifest(uri)
    body = path.read_bytes()
    position, *rest = _FOOTER.unpack(body[-_FOOTER.size :])
    (length,) = _LENGTH.unpack_from(body, position)
    start = position + _LENGTH.size
    message = [body[start : start + length]]
    for number in range(fragments):
        one = pool.message(number, id=number)
        message.append(_key(_FRAGMENTS, 2) + _varint(len(one)) + one)
    message.append(_key(_MAX_FRAGMENT_ID, 0) + _varint(fragments - 1))
    whole = b"".join(message)
    path.write_bytes(body[:position] + _LENGTH.pack(len(whole)) + whole + _FOOTER.pack(position, *rest))


def newest_manifest(uri: str | Path) -> Path:
    """The file of the latest version of a local table; names descend with versions."""
    return min(path for path in Path(uri, "_versions").iterdir() if path.suffix == ".manifest")


def require_once(
    uri: str, names: Sequence[str], *, maybe: Iterable[str] = (), storage_options: dict[str, str] | None = None
) -> None:
    """Check with pylance that the latest version has exactly these data files, each once.

    `maybe`: files of commits that failed; they may be there or not. Raises `WrongTable`.
    """
    import lance

    table: Any = lance.dataset(uri, storage_options=storage_options)
    found = [file.path for fragment in table.get_fragments() for file in fragment.metadata.files]
    wanted, doubtful = set(names), set(maybe)
    there = set(found)
    problems = [
        (len(found) - len(there), "are there more than once"),
        (len(wanted - there), "were committed and are missing"),
        (len(there - wanted - doubtful), "were not committed and are there"),
        (abs(int(table.count_rows()) - len(found)), "have not one row"),
    ]
    if told := [f"{count} of the files {what}" for count, what in problems if count]:
        raise WrongTable(f"the table with {len(found)} fragments, after {len(wanted)} commits: {'; '.join(told)}")


def require_count(uri: str, fragments: int) -> None:
    """Check with pylance that the latest version has this many fragments of one row. Raises `WrongTable`."""
    import lance

    rows = int(lance.dataset(uri).count_rows())
    if rows != fragments:
        raise WrongTable(f"the table has {rows} rows, not {fragments}")


def parts(count: int, of: int) -> Iterator[range]:
    """Split the numbers below `count` into `of` runs of nearly the same length."""
    for part in range(of):
        yield range(count * part // of, count * (part + 1) // of)


def rows(ids: Sequence[int], value: int = 0) -> Any:
    """Return a pyarrow Table with the schema of all tables here."""
    import pyarrow as pa

    schema = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.int64())])
    return pa.table({"id": pa.array(ids, pa.int64()), "value": pa.array([value] * len(ids), pa.int64())}, schema=schema)


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
