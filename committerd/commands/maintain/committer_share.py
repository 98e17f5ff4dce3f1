"""Keeps the commits of maintenance to a share of the committer's time."""

from __future__ import annotations

import anyio

from committerd.telemetry import MaintenanceTelemetry
from committerd_client import NotCommitted
from committerd_client.compacting import Commits
from committerd_client.options import CLIENTS_TIMEOUT, Timeout
from committerd_client.reexecution import ATTEMPTS_MAX, AsyncReexecute, Reexecution, TransactionLike, execute_again
from committerd_client.results import CommitResult


class CommitterShare:
    """Commits as its client does, and says when the next task may begin.

    The time of a commit is what its outcome says: from when the committer begins to process the record until the
    version is durable that commits or refuses it. Tries that are refused count too. The records of others that are in
    the same version share that time, so it tends to be too long.
    """

    def __init__(self, client: Commits, share: float, telemetry: MaintenanceTelemetry) -> None:
        """`share`: setting maintain.committer_share."""
        self._client = client
        self._share = share
        self._telemetry = telemetry
        self._used_until = 0.0
        """When this process may use the committer again, by the event loop's clock: by then it has its share again."""

    @property
    def seconds_left(self) -> float:
        """Seconds until the next task may begin."""
        return max(self._used_until - anyio.current_time(), 0.0)

    async def commit(
        self,
        transaction: TransactionLike,
        *,
        timeout: Timeout = CLIENTS_TIMEOUT,
        reexecute: AsyncReexecute | None = None,
        attempts: int = ATTEMPTS_MAX,
    ) -> CommitResult:
        """As `CommitClient.commit`, and with its errors."""
        counted: NotCommitted | None = None

        async def again(refused: Reexecution) -> TransactionLike | None:
            nonlocal counted
            assert reexecute is not None
            counted = refused.error
            self._used(counted.commit_ms)
            return await execute_again(reexecute, refused)

        try:
            result = await self._client.commit(
                transaction, timeout=timeout, reexecute=None if reexecute is None else again, attempts=attempts
            )
        except NotCommitted as error:
            if error is not counted:
                self._used(error.commit_ms)
            raise
        self._used(result.commit_ms)
        return result

    def _used(self, milliseconds: int) -> None:
        seconds = milliseconds / 1000
        self._telemetry.committer_seconds.add(seconds)
        self._used_until = max(self._used_until, anyio.current_time() - seconds) + seconds / self._share
