"""Where a table is, and whether there is one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from committerd_client.errors import StagingError, TableMissing
from committerd_client.headers import Staged
from committerd_common.branches import is_branch_folder
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
    """Of the table's root, or of the branch's folder."""
    branch: str = ""
    """The branch; empty for the main branch."""
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    @property
    def options(self) -> dict[str, str] | None:
        """The storage options, for pylance."""
        return dict(self.storage_options) if self.storage_options else None

    def find(self) -> lance.LanceDataset | None:
        """The table at its latest version; None if there is none.

        Raises `TableMissing` for a branch that does not exist, because no commit makes a branch, and pylance's errors
        for other failures.
        """
        import lance  # imported here because it takes a third of a second

        try:
            return lance.dataset(self.uri, storage_options=self.options)
        except (OSError, ValueError) as error:
            # pylance 4.0.0 to 14.x raises a ValueError, and has no class for it.
            if "was not found" not in str(error):
                raise
            require_no_branch(self.uri, self.branch)
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


def require_no_branch(uri: str, branch: str) -> None:
    """Raise `TableMissing` if a table that does not exist is a branch."""
    if branch:
        raise TableMissing(
            f"there is no branch {branch!r} at {uri}: create it with pylance, "
            f"lance.dataset(uri).create_branch({branch!r}), or correct branch="
        )


def table_location(uri: str | None, storage_options: Mapping[str, str] | None, *, branch: str = "") -> TableLocation:
    """The place for calls that read or write the table. `uri`: as in `TableLocation`.

    Raises `ValueError` without a URI, and `ModuleNotFoundError` if the extra `lance` is not installed.
    """
    if uri is None:
        raise ValueError("the client does not know where the table is: give it dataset_uri=")
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"calls that read or write the table need pylance: {install_line('lance')}", name=missing[0]
        )
    return TableLocation(uri=uri, storage_options=storage_options, branch=branch)


def require_same_branch(staged: Staged, uri: str | None, branch: str) -> None:
    """Raise `StagingError` (`branch`) if the change is one of another branch.

    `uri`: of the client's table or branch, if it is known.
    """
    theirs = staged.branch
    if theirs is None or theirs == branch or (theirs and uri is not None and is_branch_folder(uri, theirs)):
        return
    raise StagingError(
        f"the change was staged for {_named(theirs)}, and this client commits to {_named(branch)}: open the dataset at "
        f"that branch, or make a client with branch={theirs!r}",
        code="branch",
    )


def _named(branch: str) -> str:
    return f"branch {branch!r}" if branch else "the main branch"


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
