"""What `submit` returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from committerd_client.in_flight import Submission
from committerd_client.options import CLIENTS_TIMEOUT, Timeout
from committerd_client.results import CommitResult
from committerd_client.resuming import Bookmark


class CommitHandle:
    """A transaction that Kafka holds. Dropping the handle does not take it back."""

    __slots__ = ("_submission", "_wait", "bookmark")

    def __init__(
        self, submission: Submission, bookmark: Bookmark, wait: Callable[[Submission, Timeout], Awaitable[CommitResult]]
    ) -> None:
        """`wait`: how the client waits for the outcome of a submission."""
        self._submission = submission
        self._wait = wait
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
        return await self._wait(self._submission, timeout)

    def __repr__(self) -> str:
        return f"<CommitHandle {self.uuid} offset={self.offset} {'done' if self.done() else 'pending'}>"
