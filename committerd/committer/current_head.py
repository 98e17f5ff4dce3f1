"""The committer's current head, and when it was last known to be valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from committerd.committer.head import Head, StartAgain
from committerd.committer.ledgers import LedgerPart
from committerd.committer.loading import News, read_new, require_same
from committerd.committer.older_history import OlderHistory
from committerd.table.manifests import RECENT_SECONDS_MAX
from committerd.table.versions import Table, VersionState

SAME_SECONDS_MAX = 1.0
"""How long the head's version counts as the same before it is read again."""
_LISTING_AGE_SECONDS_MAX = 60.0
"""Maximum age of the listing made for a put. Cleanups keep the versions of the last hour at least."""


@dataclass(slots=True)
class CurrentHead:
    """The current head of one assignment. Only the committer's loop replaces it, with a head that follows it."""

    head: Head
    monotonic: Callable[[], float]
    """A clock in seconds that keeps counting while the machine sleeps."""
    older: OlderHistory
    """The history, of which Start may have left a part unread."""
    generation: int
    """Of the assignment in which Start has made it."""
    read_at: float = 0.0
    """When the head's version was last known to be the latest, in monotonic seconds."""
    looked_at: float = 0.0
    """When the latest version was last looked for, in monotonic seconds."""
    confirmed_at: float = 0.0
    """When the head's version was last known to exist and to be the same, in monotonic seconds."""

    @property
    def table(self) -> Table:
        return self.head.table

    async def peek(self) -> News:
        """Read the versions above the head without moving it; pass the result to `learn`. Raises as `read_new`."""
        asked_at = self.monotonic()
        news = await read_new(self.table, self.head.version, await self._newest())
        self.read_at = self.confirmed_at = asked_at
        return news

    def learn(self, news: News) -> None:
        """Move the head to the last of these versions. Raises `StartAgain` when an operator has set the position."""
        if news.manifest is not None:
            self.head = self.head.then(news.found, news.manifest)

    def learn_history(self) -> None:
        """Add what was read of the older history by now to the head's ledger."""
        if self.head.ledger.unread_below:
            self.head = replace(self.head, ledger=self.older.added_to(self.head.ledger))

    def keep_within(self, part: LedgerPart) -> None:
        """Keep the ledger within its part of the memory: drop the oldest versions that are beyond it."""
        bytes_max = part.bound(max(self.head.ledger.bytes, self.older.bytes))
        if bytes_max != self.head.ledger.bytes_max:
            self.older.keep_within(bytes_max)
            self.head = replace(self.head, ledger=self.head.ledger.within(bytes_max))

    def follow(self, head: Head, *, read_at: float) -> None:
        """Move to a head whose version was known to be the latest at `read_at` (monotonic seconds)."""
        self.head = head
        self.read_at = self.confirmed_at = read_at

    async def still_latest(self, *, age_max: float) -> bool:
        """Whether the head's version is still the latest; looks for it if that is older than `age_max` seconds.

        Looks again if that took very long. Raises `StartAgain` when the table went back or is another one, and
        `StoreUnavailable`.
        """
        while self.monotonic() - self.read_at > age_max:
            read_at = self.monotonic()
            newest = await self._newest()
            if newest < self.head.version:
                raise StartAgain(f"the table went back from version {self.head.version} to {newest}")
            if newest > self.head.version:
                return False
            await self.confirm()
            self.read_at, age_max = read_at, _LISTING_AGE_SECONDS_MAX
        return True

    async def _newest(self) -> int:
        """Return the latest version; 0 = there is no table. May not notice that the head's own version is gone."""
        self.looked_at = self.monotonic()
        is_recent = self.looked_at - self.read_at <= RECENT_SECONDS_MAX
        return await self.table.latest_version(recent=self.head.version if is_recent else 0) or 0

    @property
    def confirmed_seconds(self) -> float:
        """Seconds since the head's version was known to exist and to be the same."""
        return self.monotonic() - self.confirmed_at

    async def confirm(self) -> None:
        """Check that the head's version still exists and is the same. Raises `StartAgain` otherwise."""
        if not self.head.version:
            return
        asked_at = self.monotonic()
        self.confirmed(await self.table.standing(self.head.version), asked_at)

    def confirmed(self, standing: VersionState, asked_at: float) -> None:
        """Note what was found at `asked_at` (monotonic seconds). Raises `StartAgain` unless the version is the same."""
        require_same(self.head.version, standing)
        self.confirmed_at = asked_at
