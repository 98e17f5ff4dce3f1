"""Removes files that a change has written and that no version will name, as soon as that is certain.

Only the client that has written a file removes it here, and only if the transaction that names it was refused for good
or never sent. Where the outcome is unknown, `committerd maintain` reclaims the file later.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from committerd_client.errors import ClientError, InvalidTransaction, UnsupportedTransaction
from committerd_client.panics import panics_raised
from committerd_common.messages import DataFragment, Transaction
from committerd_common.paths import INDICES, data_key, index_prefix

if TYPE_CHECKING:
    import lance

_log = logging.getLogger("committerd_client")


class Leftovers:
    """The files of one change through all its executions."""

    def __init__(self) -> None:
        self._written: set[str] = set()
        self._in_doubt: set[str] = set()

    def wrote(self, keys: Iterable[str]) -> None:
        """These files, or folders of indices, were written; keys are relative to the table's folder."""
        self._written.update(keys)

    def sends(self, keys: Iterable[str]) -> None:
        """A transaction that names these is sent next, and may be committed from now on."""
        self._in_doubt = set(keys)

    def refused(self) -> None:
        """What was sent last is not in the table, and never will be."""
        self._in_doubt = set()

    def ended(self, error: Exception) -> None:
        """The commit has raised this error."""
        # A dead letter may be replayed, with its files.
        dead = isinstance(error, InvalidTransaction | UnsupportedTransaction) and error.offset is not None
        if isinstance(error, ClientError) and not error.unknown and not dead:
            self.refused()

    def remove(self, dataset: lance.LanceDataset) -> None:
        """Remove what was written, except for what the transaction names that was sent last.

        `dataset`: any version of the table. Writes to the log what can't be removed; raises nothing.
        """
        unneeded, self._written = self._written - self._in_doubt, self._written & self._in_doubt
        left = []
        for key in sorted(unneeded):
            try:
                with panics_raised():
                    if not (key.startswith(INDICES) and key in _indices_of_latest(dataset)):
                        remover(dataset.uri, dataset.latest_storage_options())(key)
            except Exception as error:  # noqa: BLE001  # whatever it is, maintenance reclaims the file later
                left.append(f"{key} ({error})")
        if left:
            _log.warning("no version of %s names these files, and they could not be removed: %s", dataset.uri, left)


def data_keys(fragments: Iterable[DataFragment]) -> set[str]:
    """The data files of these fragments in the table's own folder."""
    return {data_key(file.path) for one in fragments for file in one.files if not file.HasField("base_id")}


def index_keys(transaction: Transaction, dataset: lance.LanceDataset) -> set[str]:
    """The folders of the indices that the transaction adds to this version."""
    there = _indices(dataset)
    uuids = [
        *(one.uuid.uuid for one in transaction.create_index.new_indices),
        *(one.new_id.uuid for one in transaction.rewrite.rewritten_indices),
    ]
    return {index_prefix(one) for one in uuids} - there


def _indices(dataset: lance.LanceDataset) -> set[str]:
    return {
        index_prefix(UUID(str(segment.uuid)).bytes)
        for index in dataset.describe_indices()
        for segment in index.segments
    }


def _indices_of_latest(dataset: lance.LanceDataset) -> set[str]:
    import lance

    # An index may be named by a version that came while the transaction was planned.
    return _indices(lance.dataset(dataset.uri, storage_options=dataset.latest_storage_options()))


def remover(uri: str, storage_options: dict[str, str] | None) -> Callable[[str], object]:
    """A function that removes one file, or all files of a folder whose key ends with a slash.

    It raises `OSError` and pylance's errors. A file that is already gone is not an error.
    """
    if "://" not in uri:
        return lambda key: _remove_here(Path(uri, key))
    from lance.file import LanceFileSession

    session = LanceFileSession(uri, storage_options=storage_options)
    delete: Callable[[str], object] | None = getattr(session, "delete_file", None)
    if delete is None:
        raise OSError("this pylance has no way to delete files")
    made = delete

    def remove(key: str) -> None:
        for one in session.list(key) if key.endswith("/") else [key]:
            made(one)

    return remove


def _remove_here(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
