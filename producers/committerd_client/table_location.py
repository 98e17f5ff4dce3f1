"""Where a table is, and whether there is one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from committerd_client.errors import StagingError, TableMissing
from committerd_client.headers import Staged
from committerd_common.extras import install_line
from committerd_common.messages import DataFragment
from committerd_common.uris import canonical_uri, lance_uri, local_folder

if TYPE_CHECKING:
    import lance

_NEEDED = ("lance", "pyroaring", "numpy")
"""What the extra `lance` brings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation:
    """The place of a table, as pylance opens it."""

    uri: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    @property
    def options(self) -> dict[str, str] | None:
        """The storage options, for pylance."""
        return dict(self.storage_options) if self.storage_options else None

    def find(self) -> lance.LanceDataset | None:
        """The table at its latest version; None if there is none. Raises pylance's errors for other failures."""
        import lance  # imported here because it takes a third of a second

        try:
            return lance.dataset(self.uri, storage_options=self.options)
        except (OSError, ValueError) as error:
            # pylance 4.0.0 to 14.x raises a ValueError, and has no class for it.
            if "was not found" not in str(error):
                raise
            return None

    def open(self) -> lance.LanceDataset:
        """The table at its latest version. Raises `TableMissing`."""
        found = self.find()
        if found is None:
            raise TableMissing(
                f"there is no table at {self.uri}. Create it with client.create(schema), or with the first rows: "
                "append and upsert take create=True"
            )
        return found


def checked_uri(given: str | os.PathLike[str]) -> str:
    """The URI or absolute path of a table, as pylance takes it. Raises `ValueError` for a relative path."""
    uri = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(uri, str):
        raise TypeError(f"dataset_uri is {type(given).__name__}, and a str or a Path is needed")
    if not uri.strip():
        raise ValueError("dataset_uri is empty: give the table's absolute path or URI")
    place = canonical_uri(uri)
    if "://" not in place and not place.startswith("/"):
        absolute = os.path.abspath(os.path.expanduser(uri))
        raise ValueError(
            f"dataset_uri {uri!r} is relative, and the committer runs in another folder: give the absolute path "
            f"({absolute!r}), or a URI with its scheme, such as 's3://bucket/events.lance'"
        )
    return lance_uri(uri)


def table_location(uri: str | None, storage_options: Mapping[str, str] | None) -> TableLocation:
    """The place for calls that read or write the table.

    Raises `ValueError` without a URI, and `ModuleNotFoundError` if the extra `lance` is not installed.
    """
    if uri is None:
        raise ValueError("the client does not know where the table is: give it dataset_uri=")
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"calls that read or write the table need pylance: {install_line('lance')}", name=missing[0]
        )
    return TableLocation(uri=uri, storage_options=storage_options)


def require_same_table(staged: Staged, uri: str) -> None:
    """Raise `StagingError` if the change is certainly one of another table than that at `uri`.

    Only folders of this machine are certain: elsewhere a table may have several names, and the committer decides.
    """
    folder = local_folder(uri)
    if folder is None or not os.path.isdir(folder):  # perhaps it is a path of the committer's machine
        return
    if staged.uri is not None:
        theirs = local_folder(staged.uri)
        if theirs is None or theirs == folder or not os.path.isdir(theirs) or os.path.samefile(theirs, folder):
            return
        raise StagingError(
            f"the change was staged for the table at {theirs}, and this client commits to {folder}: open the dataset "
            f"there, or make a client with dataset_uri={theirs!r}",
            code="files_elsewhere",
        )
    if staged.transaction.WhichOneof("operation") == "overwrite":
        require_files(folder, staged.transaction.overwrite.fragments)


def require_files(folder: str, fragments: Iterable[DataFragment]) -> None:
    """Raise `StagingError` if a local table's folder does not have the files of new fragments.

    The committer looks for them in any store, and refuses the transaction; a request for each would take too long here.
    """
    for one in fragments:
        for file in one.files:
            path = os.path.join(folder, "data", file.path)
            if not file.HasField("base_id") and not os.path.exists(path):
                raise StagingError(
                    f"there is no file {os.path.abspath(path)}: the fragments were written for another table. Give "
                    "write_fragments() the table to which you commit them",
                    code="files_elsewhere",
                )
