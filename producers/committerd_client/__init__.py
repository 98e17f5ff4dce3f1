"""Client of committerd: commit to a Lance table through its queue, and learn what became of it.

    import lance
    from committerd_client import CommitClient, staging

    fragments = lance.fragment.write_fragments(data, dataset_uri)
    async with CommitClient("broker:9092", dataset="events", dataset_uri=dataset_uri) as client:
        result = await client.commit(staging.append(fragments))
    print(result.version)

`errors` says what can go wrong and what to do next; `staging` (needs pylance, extra `lance`) turns what pylance has
written but not committed into transactions.
"""

from __future__ import annotations

from committerd_client.client import CommitClient, CommitHandle
from committerd_client.errors import (
    ClientClosed,
    ClientError,
    CommitConflict,
    CommitTimeout,
    Expired,
    IncompatibleConflict,
    InFlightFull,
    InvalidTransaction,
    KafkaUnavailable,
    NotCommitted,
    RetryableConflict,
    SubmitFailed,
    TransactionTooLarge,
    Undecided,
    UnsupportedTransaction,
)
from committerd_client.headers import App, Staged
from committerd_client.results import CommitResult, CommitStatus

__all__ = [
    "App",
    "ClientClosed",
    "ClientError",
    "CommitClient",
    "CommitConflict",
    "CommitHandle",
    "CommitResult",
    "CommitStatus",
    "CommitTimeout",
    "Expired",
    "InFlightFull",
    "IncompatibleConflict",
    "InvalidTransaction",
    "KafkaUnavailable",
    "NotCommitted",
    "RetryableConflict",
    "Staged",
    "SubmitFailed",
    "TransactionTooLarge",
    "Undecided",
    "UnsupportedTransaction",
]
