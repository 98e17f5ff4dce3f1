"""Stops pylance before it commits a change, and returns the transaction that it would have committed.

This serves changes for which pylance has no uncommitted form. Lance writes the transaction into `_transactions/` and
then enters the dataset's `commit_lock`, which is our function: it reads the transaction and raises. Nothing is
committed. pylance 14 then removes the file; 4.0.0 leaves it to Lance's cleanup, like any file that no version names.
"""

from __future__ import annotations

import contextlib
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


class _Stopped(Exception):
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

    watch = _Watch(dataset, expected)
    opened = lance.dataset(
        dataset.uri,
        version=dataset.version,
        commit_lock=watch.lock,
        storage_options=dataset.latest_storage_options(),
        session=dataset.session(),  # with its caches
    )
    try:
        change(opened)
    except Exception:
        if not watch.stopped:
            raise
    if not watch.stopped:
        return None
    if len(watch.found) != 1:
        raise StagingError(
            f"pylance wrote its transaction into {_FOLDER} as one of {len(watch.found)} that could be it: another "
            "process does the same at this moment. Try again",
            code="index",
        )
    return watch.found[0]


class _Watch:
    """The commit lock, and the transactions that it finds."""

    def __init__(self, dataset: lance.LanceDataset, expected: Callable[[Transaction], bool]) -> None:
        from lance.file import LanceFileSession

        self._files = LanceFileSession(dataset.uri, storage_options=dataset.latest_storage_options())
        self._folder = local_folder(dataset.uri)
        self._expected = expected
        self._before = set(self._files.list(_FOLDER))
        self.found: list[Transaction] = []
        self.stopped = False

    @contextlib.contextmanager
    def lock(self, version: int) -> Iterator[None]:
        # pylance calls this in a thread of its own, in which pylance itself can't be called.
        reading = threading.Thread(target=self._look, daemon=True)
        reading.start()
        reading.join(_READ_SECONDS)
        self.stopped = True
        raise _Stopped(f"version {version} is not to be committed here")
        yield  # makes it a context manager

    def _look(self) -> None:
        new = sorted(set(self._files.list(_FOLDER)) - self._before)
        read = [self._read(path) for path in new]
        self.found = [one for one in read if one is not None and self._expected(one)]

    def _read(self, path: str) -> Transaction | None:
        try:
            if self._folder is not None:
                return Transaction.FromString(Path(self._folder, path).read_bytes())
            with tempfile.TemporaryDirectory() as folder:
                here = Path(folder, "transaction")
                self._files.download_file(path, str(here))
                return Transaction.FromString(here.read_bytes())
        except OSError:  # another writer has removed its file
            return None
