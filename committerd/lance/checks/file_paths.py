"""The paths that a transaction may give to its files."""

from __future__ import annotations

from committerd.errors import InvalidRequest
from committerd.lance.checks.uuids import UUID_BYTES
from committerd.lance.format.wording import quoted
from committerd_common.paths import DATA, index_prefix, leaves_its_folder, object_name, unstorable

_INDEX_FOLDER_BYTES = len(index_prefix(bytes(UUID_BYTES)))


def require_data_path(path: str, key_bytes_max: int) -> None:
    """Check that a data file may have this path. `key_bytes_max`: the most bytes of a key below the table's folder.

    Readers treat the whole path as one segment of a key, so a path of several segments names no file. Raises
    `InvalidRequest` (`path_outside`, `path_invalid`).
    """
    if leaves_its_folder(path):
        raise InvalidRequest(
            f"data file {quoted(path)} must be the name of a file in the table's folder data/: not empty, "
            "and without `/`, `\\`, control characters, `.` or `..`, plain or percent-encoded",
            code="path_outside",
        )
    _require_storable("data file", path, object_name(path), key_bytes_max - len(DATA))


def require_index_path(path: str, key_bytes_max: int) -> None:
    """Check that an index file may have this path below the index's folder; the path may have several segments.

    `key_bytes_max` and errors are those of `require_data_path`.
    """
    if any(leaves_its_folder(segment) for segment in path.split("/")):
        raise InvalidRequest(
            f"index file {quoted(path)} must be a path below the index's folder: not empty, not absolute, "
            "and without `\\`, control characters, `.` or `..`, plain or percent-encoded",
            code="path_outside",
        )
    _require_storable("index file", path, path, key_bytes_max - _INDEX_FOLDER_BYTES)


def _require_storable(what: str, path: str, key: str, key_bytes_max: int) -> None:
    if fault := unstorable(key, key_bytes_max):
        raise InvalidRequest(f"{what} {quoted(path)} can't be stored: {fault}", code="path_invalid")
