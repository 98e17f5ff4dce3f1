"""Where a file lies: in the table's folder, or in a base path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from committerd.errors import InvalidRequest
from committerd_common.messages import BasePath, DataFile, DataFragment
from committerd_common.paths import data_key, deletion_key


class Location(NamedTuple):
    """An object of a version."""

    key: str
    """In the table's folder, or in the base path."""
    base: str | None = None
    """The URI of the base path; None = the table's folder."""


def located(key: str, base_id: int | None, bases: Sequence[BasePath]) -> Location:
    """Where an object lies. Raises `InvalidRequest` (`base_unreadable`).

    `key`: as in the table's folder. `base_id`: None = it lies there. `bases`: the base paths that can be read.
    """
    if base_id is None:
        return Location(key)
    base = next((base for base in bases if base.id == base_id), None)
    if base is None:
        raise InvalidRequest(
            f"{key} lies in base {base_id}, which can't be read from here; commit it with `committerd commit`",
            code="base_unreadable",
        )
    return Location(key if base.is_dataset_root else key.partition("/")[2], base.path)


def data_file_location(file: DataFile, bases: Sequence[BasePath]) -> Location:
    """Where a data file lies. Raises as `located`."""
    return located(data_key(file.path), file.base_id if file.HasField("base_id") else None, bases)


def deletion_file_location(fragment: DataFragment, bases: Sequence[BasePath], *, staged: bool) -> Location:
    """Where the deletion file of a fragment lies, which has one. Raises as `located`."""
    file = fragment.deletion_file
    key = deletion_key(fragment.id, file, staged=staged)
    return located(key, file.base_id if file.HasField("base_id") else None, bases)
