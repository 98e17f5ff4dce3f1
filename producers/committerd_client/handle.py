"""The handles that `submit` returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from committerd_client.in_flight import Submission
from committerd_client.options import CLIENTS_TIMEOUT, Timeout
from committerd_client.results import CommitResult
from committerd_client.resuming import Bookmark


class Handle:
    """What the handles of both clients have."""

    __slots__ = ("_submission", "bookmark")

    def __init__(self, submission: Submission, bookmark: Bookmark) -> None:
        self._submission = submission
        self.bookmark = bookmark
        """For `resume`: the outcome is at this place or after it."""

    @property
    def uuid(self) -> str:
        """The transaction's uuid."""
        return self._submission.uuid

    @property
    def offset(self) -> int | None:
        """The record's offset in the staged topic; None in the rare case that Kafka doesn't return it."""
        return self._submission.offset

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._submission.result is not None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.uuid} offset={self.offset} {'done' if self.done() else 'pending'}>"


class CommitHandle(Handle):
    """A transaction that Kafka has acknowledged. Dropping the handle does not withdraw the transaction."""

    __slots__ = ("_wait",)

    def __init__(
        self, submission: Submission, bookmark: Bookmark, wait: Callable[[Submission, Timeout], Awaitable[CommitResult]]
    ) -> None:
        """`wait`: awaits the outcome of a submission, in the client."""
        super().__init__(submission, bookmark)
        self._wait = wait

    async def outcome(self, *, timeout: Timeout = CLIENTS_TIMEOUT) -> CommitResult:
        """Wait for the outcome. Raises the errors of `CommitClient.commit`.

        May be called several times, from any number of tasks.
        """
        return await self._wait(self._submission, timeout)
