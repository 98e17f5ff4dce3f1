"""Client of committerd: change a Lance table through its queue, and get the outcome of each change.

    from committerd_client import SyncCommitClient

    with SyncCommitClient("broker:9092", dataset_uri="s3://bucket/events.lance") as client:
        print(client.append([{"id": 1, "name": "Ann"}], create=True))

`CommitClient` is the same for asyncio. `errors` lists every error and what to do next. `staging` turns uncommitted
results of pylance into transactions, for those who write files themselves. Both need pylance (extra `lance`); a client
that commits transactions of others does not.
"""

from __future__ import annotations

from committerd_client import errors as errors
from committerd_client.client import CommitClient
from committerd_client.data import Data
from committerd_client.errors import (
    ClientClosed,
    ClientError,
    CommitConflict,
    CommitManyFailed,
    CommitTimeout,
    Expired,
    IncompatibleConflict,
    InFlightFull,
    InvalidTransaction,
    KafkaUnavailable,
    NotCommitted,
    OutcomeNotFound,
    RetryableConflict,
    StagingError,
    SubmitFailed,
    TableExists,
    TableMissing,
    TransactionTooLarge,
    Undecided,
    UnsupportedTransaction,
)
from committerd_client.handle import CommitHandle
from committerd_client.headers import App, Staged, StagedChange
from committerd_client.options import CommitOptions
from committerd_client.queue_status import QueueStatus
from committerd_client.reexecution import Reexecution
from committerd_client.results import CommitResult, CommitStatus, CompactionResult, LeftAlone, WriteResult
from committerd_client.resuming import Bookmark
from committerd_client.sync import SyncCommitClient, SyncCommitHandle

__all__ = [
    "App",
    "Bookmark",
    "ClientClosed",
    "ClientError",
    "CommitClient",
    "CommitConflict",
    "CommitHandle",
    "CommitManyFailed",
    "CommitOptions",
    "CommitResult",
    "CommitStatus",
    "CommitTimeout",
    "CompactionResult",
    "Data",
    "Expired",
    "InFlightFull",
    "IncompatibleConflict",
    "InvalidTransaction",
    "KafkaUnavailable",
    "LeftAlone",
    "NotCommitted",
    "OutcomeNotFound",
    "QueueStatus",
    "Reexecution",
    "RetryableConflict",
    "Staged",
    "StagedChange",
    "StagingError",
    "SubmitFailed",
    "SyncCommitClient",
    "SyncCommitHandle",
    "TableExists",
    "TableMissing",
    "TransactionTooLarge",
    "Undecided",
    "UnsupportedTransaction",
    "WriteResult",
]


def __dir__() -> list[str]:
    """What completion shows: the modules below are internal, except for these two."""
    return [*__all__, "errors", "staging"]
