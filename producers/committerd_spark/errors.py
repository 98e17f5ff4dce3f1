"""What a write from Spark can raise, beside what `committerd_client` raises.

SparkWriteError                 nothing was committed
├── SchemaMismatch              the DataFrame does not fit the table's schema. Also ValueError
├── InvalidKeys                 a key of an upsert or delete is null, or twice in one batch. Also ValueError
├── AppIdMissing                the stream has no name by which its batches could be known after a restart
├── SecondWrite                 two writes of one micro-batch have the same name
├── TableMissing                there is no table to delete from
└── ConnectUnsupported          a DataFrame of Spark Connect
AppIdInUse                      the checkpoint is not the one that the table knows. Also InvalidTransaction
"""

from __future__ import annotations

from committerd_client.errors import InvalidTransaction
from committerd_common.errors import CommitterError


class SparkWriteError(CommitterError):
    """Base of what is found before anything is staged."""

    code = "spark_write"


class SchemaMismatch(SparkWriteError, ValueError):
    """Names each column that is missing, not in the table, or of a type that does not fit without loss."""

    code = "schema_mismatch"


class InvalidKeys(SparkWriteError, ValueError):
    """An upsert or delete needs one row for each key, and no null among the keys."""

    code = "invalid_keys"


class AppIdMissing(SparkWriteError):
    """Without a name that survives a restart a replayed micro-batch would be committed twice."""

    code = "app_id_missing"


class SecondWrite(SparkWriteError):
    """The second write would be answered as a duplicate of the first, and its rows would be lost."""

    code = "second_write"


class TableMissing(SparkWriteError):
    """A delete needs a table; only the other modes create one."""

    code = "table_missing"


class ConnectUnsupported(SparkWriteError):
    """Spark Connect runs foreachBatch in a process that does not know the query."""

    code = "connect_unsupported"


class AppIdInUse(InvalidTransaction):
    """The app id belongs to another streaming query: its checkpoint was deleted, or two queries share the name."""

    code = "app_id_in_use"
