"""The errors of a write from Spark, in addition to those of `committerd_client`.

SparkWriteError                 nothing was committed
├── SchemaMismatch              the DataFrame does not fit the table's schema. Also ValueError
├── InvalidKeys                 a key of an upsert or delete is null, or twice in a batch. Also ValueError
├── AppIdMissing                the stream has no name that identifies its batches after a restart
├── SecondWrite                 two writes of a micro-batch have the same name
├── TableMissing                there is no table to delete from
└── ConnectUnsupported          a DataFrame of Spark Connect
AppIdInUse                      the table knows the app id from another checkpoint. Also InvalidTransaction
"""

from __future__ import annotations

from committerd_client.errors import InvalidTransaction
from committerd_common.errors import CommitterError


class SparkWriteError(CommitterError):
    """Base of the errors that are found before anything is staged."""

    code = "spark_write"


class SchemaMismatch(SparkWriteError, ValueError):
    """The DataFrame does not fit the table's schema.

    The message names each column that is missing, not in the table, or of a type that does not fit without loss.
    """

    code = "schema_mismatch"


class InvalidKeys(SparkWriteError, ValueError):
    """A key is null or occurs twice: an upsert or delete needs one row for each key, and no null in the keys."""

    code = "invalid_keys"


class AppIdMissing(SparkWriteError):
    """The stream has no name that survives a restart, so a replayed micro-batch would be committed twice."""

    code = "app_id_missing"


class SecondWrite(SparkWriteError):
    """Two writes of a micro-batch have the same name: the second would be a DUPLICATE, and its rows would be lost."""

    code = "second_write"


class TableMissing(SparkWriteError):
    """There is no table: a delete needs one, and only the other modes create it."""

    code = "table_missing"


class ConnectUnsupported(SparkWriteError):
    """The DataFrame is of Spark Connect, which runs foreachBatch in a process that does not know the query."""

    code = "connect_unsupported"


class AppIdInUse(InvalidTransaction):
    """The app id belongs to another streaming query: its checkpoint was deleted, or two queries share the name."""

    code = "app_id_in_use"
