"""What `submit` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from committerd_client.in_flight import Submission
from committerd_client.options import CLIENTS_TIMEOUT, Timeout
from committerd_client.results import CommitResult
from committerd_client.resuming import Bookmark

if TYPE_CHECKING:
    from committerd_client.client import CommitClient


class CommitHandle:
    """A transaction that Kafka holds. Dropping the handle does not take it back."""

    __slots__ = ("_client", "_submission", "bookmark")

    def __init__(self, client: CommitClient, submission: Submission, bookmark: Bookmark) -> None:
        self._client = client
        self._submission = submission
        self.bookmark = bookmark
        """For `CommitClient.resume`: the answer comes at this place or later."""

    @property
    def uuid(self) -> str:
        """The transaction's."""
        return self._submission.uuid

    @property
    def offset(self) -> int | None:
        """Of its record in the staged topic; None in the rare case that Kafka doesn't say."""
        return self._submission.offset

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._submission.answer is not None

    async def outcome(self, *, timeout: Timeout = CLIENTS_TIMEOUT) -> CommitResult:
        """Wait for the answer; may be called again, from several tasks too. Raises as `CommitClient.commit` does."""
        return await self._client._outcome(self._submission, self._client._seconds(timeout))

    def __repr__(self) -> str:
        return f"<CommitHandle {self.uuid} offset={self.offset} {'done' if self.done() else 'pending'}>"
