"""Client of committerd: commit to a Lance table through its queue, and get the outcome of each transaction.

    import lance
    from committerd_client import CommitClient, staging

    dataset = lance.dataset(dataset_uri)
    fragments = lance.fragment.write_fragments(data, dataset, mode="append")
    async with CommitClient("broker:9092", dataset="events", dataset_uri=dataset_uri) as client:
        result = await client.commit(staging.append(fragments, dataset=dataset))
    print(result.version)

`errors` lists every error and what to do next. `staging` (needs pylance, extra `lance`) turns uncommitted results of
pylance into transactions.
"""

from __future__ import annotations

from committerd_client.client import CommitClient
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
from committerd_client.headers import App, Staged
from committerd_client.queue_status import QueueStatus
from committerd_client.reexecution import Reexecution
from committerd_client.results import CommitResult, CommitStatus, CompactionResult, WriteResult
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
    "CommitResult",
    "CommitStatus",
    "CommitTimeout",
    "CompactionResult",
    "Expired",
    "InFlightFull",
    "IncompatibleConflict",
    "InvalidTransaction",
    "KafkaUnavailable",
    "NotCommitted",
    "OutcomeNotFound",
    "QueueStatus",
    "Reexecution",
    "RetryableConflict",
    "Staged",
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
