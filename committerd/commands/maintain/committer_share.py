"""Keeps the commits of maintenance to a share of the committer's time."""

from __future__ import annotations

import anyio

from committerd.telemetry import MaintenanceTelemetry
from committerd_client.compacting import Commits
from committerd_client.options import CLIENTS_TIMEOUT, Timeout
from committerd_client.reexecution import ATTEMPTS_MAX, AsyncReexecute, Work
from committerd_client.results import CommitResult


class CommitterShare:
    """Commits as its client does, and says when the next task may begin.

    The time of a commit is what its outcome says: from when the committer begins to process the record until the
    version is durable. The records of others that are in the same version share that time, so it tends to be too long.
    """

    def __init__(self, client: Commits, share: float, telemetry: MaintenanceTelemetry) -> None:
        """`share`: setting maintain.committer_share."""
        self._client = client
        self._share = share
        self._telemetry = telemetry
        self._used_until = 0.0
        """Until then, this process has had its share of the time."""

    @property
    def seconds_left(self) -> float:
        """Seconds until the next task may begin."""
        return max(self._used_until - anyio.current_time(), 0.0)

    async def commit(
        self,
        transaction: Work,
        *,
        timeout: Timeout = CLIENTS_TIMEOUT,
        reexecute: AsyncReexecute | None = None,
        attempts: int = ATTEMPTS_MAX,
    ) -> CommitResult:
        """As `CommitClient.commit`, and with its errors."""
        result = await self._client.commit(transaction, timeout=timeout, reexecute=reexecute, attempts=attempts)
        seconds = result.commit_ms / 1000
        self._telemetry.committer_seconds.add(seconds)
        self._used_until = max(self._used_until, anyio.current_time() - seconds) + seconds / self._share
        return result
