"""Stops pylance before it commits a change, and returns the transaction that it would have committed.

This serves changes for which pylance has no uncommitted form. Lance writes the transaction into `_transactions/` and
then enters the dataset's `commit_lock`, which is our function: it reads the transaction and raises. Nothing is
committed. pylance 14 then removes the file; 4.0.0 leaves it to Lance's cleanup, like any file that no version names.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committerd_client.staging.errors import StagingError
from committerd_common.messages import Transaction
from committerd_common.uris import local_folder

if TYPE_CHECKING:
    import lance

_FOLDER = "_transactions"
_READ_SECONDS = 120


class _CommitPrevented(Exception):
    """Raised into pylance, so that it commits nothing."""


def would_commit(
    dataset: lance.LanceDataset,
    change: Callable[[lance.LanceDataset], Any],
    *,
    expected: Callable[[Transaction], bool],
) -> Transaction | None:
    """The uncommitted transaction of a change; None if the change would commit nothing.

    `change`: called with a dataset at the same version, which can't commit. `expected`: whether a transaction is this
    change's, and not one that another process writes at the same moment. Raises `StagingError` if several match or
    none, and the errors of the change.
    """
    import lance

    lock = _CommitLock(dataset, expected)
    opened = lance.dataset(
        dataset.uri,
        version=dataset.version,
        commit_lock=lock.enter,
        storage_options=dataset.latest_storage_options(),
        session=dataset.session(),  # with its caches
    )
    try:
        change(opened)
    except Exception:
        if not lock.stopped:
            raise
    if not lock.stopped:
        return None
    if len(lock.found) != 1:
        raise StagingError(
            f"{len(lock.found)} transactions in {_FOLDER} may be the transaction that pylance wrote: another process "
            "makes the same change at this moment. Try again",
            code="index",
        )
    return lock.found[0]


class _CommitLock:
    """The commit lock, and the transactions that it finds."""

    def __init__(self, dataset: lance.LanceDataset, expected: Callable[[Transaction], bool]) -> None:
        folder = local_folder(dataset.uri)
        self._files = _StoredTransactions(dataset) if folder is None else _LocalTransactions(folder)
        self._expected = expected
        self._before = set(self._files.names())
        self.found: list[Transaction] = []
        self.stopped = False

    @contextlib.contextmanager
    def enter(self, version: int) -> Iterator[None]:
        self._files.call(self._look)
        self.stopped = True
        raise _CommitPrevented(f"version {version} is not to be committed here")
        yield  # makes it a context manager

    def _look(self) -> None:
        new = sorted(set(self._files.names()) - self._before)
        read = [self._files.read(name) for name in new]
        self.found = [one for one in read if one is not None and self._expected(one)]


class _LocalTransactions:
    """The transactions in a local folder, read without pylance."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder, _FOLDER)

    def names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if name.endswith(".txn")]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> Transaction | None:
        """One of them; None if another writer has removed it."""
        try:
            return Transaction.FromString(Path(self._folder, name).read_bytes())
        except OSError:
            return None

    def call(self, look: Callable[[], None]) -> None:
        look()


class _StoredTransactions:
    """The transactions in a store, read by pylance."""

    def __init__(self, dataset: lance.LanceDataset) -> None:
        from lance.file import LanceFileSession

        self._files = LanceFileSession(dataset.uri, storage_options=dataset.latest_storage_options())

    def names(self) -> list[str]:
        return self._files.list(_FOLDER)

    def read(self, name: str) -> Transaction | None:
        """One of them; None if another writer has removed it."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                here = Path(folder, "transaction")
                self._files.download_file(name, str(here))
                return Transaction.FromString(here.read_bytes())
        except OSError:
            return None

    def call(self, look: Callable[[], None]) -> None:
        """Call `look` from the lock. pylance enters it in a thread in which pylance itself can't be called."""
        reading = threading.Thread(target=look, daemon=True)
        reading.start()
        reading.join(_READ_SECONDS)
