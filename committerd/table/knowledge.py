"""Which versions and transactions committerd knows in full."""

from __future__ import annotations

from committerd.errors import UnsupportedRequest, UnsupportedTable
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.support import require_supported
from committerd.lance.operations.operation import Operation
from committerd.lance.transactions.transaction import operation_of
from committerd_common.messages import Transaction
from committerd_common.unknown_fields import has_unknown_fields


class Knowledge:
    """Remembers the version that it was asked for last."""

    def __init__(self) -> None:
        self._last: tuple[ManifestFile, bool] | None = None

    def covers(self, latest: ManifestFile | None) -> bool:
        """Whether committerd can build on this version (None = there is no table). Raises `CorruptTable`."""
        if latest is None:
            return True
        last = self._last
        if last is None or last[0] is not latest:
            try:
                require_supported(latest)
                self._last = last = latest, True
            except UnsupportedTable:
                self._last = last = latest, False
        return last[1]


def known_in_full(transaction: Transaction) -> bool:
    """Whether committerd knows the operation and all fields of a transaction. Raises as `operation_of`."""
    return operation_if_known(transaction) is not None and not has_unknown_fields(transaction)


def operation_if_known(transaction: Transaction) -> Operation | None:
    """The record of the operation; None if committerd does not know it. Raises the other errors of `operation_of`."""
    try:
        return operation_of(transaction)
    except UnsupportedRequest as error:
        if error.code != "unknown_operation":
            raise
        return None
