"""The errors of a batch, in addition to those of `committerd_client`.

BatchWriteError                 nothing was committed
├── SchemaMismatch              the rows do not fit the table's schema. Also ValueError
├── InvalidKeys                 a key is null or twice in a batch, or a change of unknown kind. Also ValueError
├── AppIdMissing                nothing identifies the batch, so a repeated one could not be recognized
├── SecondWrite                 two writes of a micro-batch have the same name
├── TableMissing                there is no table to delete from. Also the client's TableMissing
├── TableChanged                the table's columns changed since the files were written: write the rows again
├── PackageMissing              an executor lacks this package, or pylance
└── ConnectUnsupported          a DataFrame of Spark Connect
AppIdInUse                      the table knows the app id from another run. Also InvalidTransaction
"""

from __future__ import annotations

from committerd_client import errors
from committerd_client.errors import InvalidTransaction
from committerd_common.errors import CommitterError


class BatchWriteError(CommitterError):
    """Base of the errors that are found before anything is staged."""

    code = "batch_write"


class SchemaMismatch(BatchWriteError, ValueError):
    """The rows do not fit the table's schema.

    The message names each column that is missing, not in the table, or of a type that does not fit without loss.
    """

    code = "schema_mismatch"


class InvalidKeys(BatchWriteError, ValueError):
    """The keys of a batch, or its kinds of change, are not what the mode needs: the message says which."""

    code = "invalid_keys"


class AppIdMissing(BatchWriteError):
    """There is no name that survives a restart, so a replayed batch would be committed twice."""

    code = "app_id_missing"


class SecondWrite(BatchWriteError):
    """Two writes of a micro-batch have the same name: the second would be a DUPLICATE, and its rows would be lost."""

    code = "second_write"


class TableMissing(BatchWriteError, errors.TableMissing):
    """There is no table: a delete needs one, and only the other modes create it."""

    code = "table_missing"


class TableChanged(BatchWriteError):
    """The table's columns have changed since the files were written, so that they do not fit it any more."""

    code = "table_changed"


class PackageMissing(BatchWriteError):
    """An executor lacks this package or pylance."""

    code = "package_missing"


class ConnectUnsupported(BatchWriteError):
    """The DataFrame is of Spark Connect, which runs foreachBatch in a process that does not know the query."""

    code = "connect_unsupported"


class AppIdInUse(InvalidTransaction):
    """The app id belongs to another run: its checkpoint was deleted, or two streams share the name."""

    code = "app_id_in_use"


def app_id_in_use(app_id: str, said: str, *, uuid: str = "") -> AppIdInUse:
    """The error, with the ways out. `said`: the fact that shows it."""
    return AppIdInUse(
        f"app id {app_id!r} is that of another streaming query. Either the checkpoint was deleted: its batches "
        "count from 0 again, and nothing was written, because it can't be known which of them the table holds. Restore "
        "the checkpoint; or, when the source does not deliver again what is in the table, let the operator run "
        f"`committerd app release {app_id} --apply --reason '...'`; or continue under another app_id. Or two queries "
        f"have this name: give each its own. {said}",
        uuid=uuid,
    )
