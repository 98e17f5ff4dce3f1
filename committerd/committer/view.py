"""The head that the committer's loop stands on, and when it was last known to be true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from committerd.committer.head import Head, StartAgain
from committerd.committer.loading import News, read_new, require_same
from committerd.table.versions import Standing, Table


@dataclass(slots=True)
class View:
    """The current head. Only the committer's loop changes it, to a head that follows."""

    head: Head
    monotonic: Callable[[], float]
    """Seconds on a clock that also counts while the machine sleeps."""
    read_at: float = 0.0
    """When the head was last known to be the latest version (monotonic seconds)."""
    confirmed_at: float = 0.0
    """When the head's version was last known to exist and to be the same (monotonic seconds)."""

    @property
    def table(self) -> Table:
        return self.head.table

    async def peek(self) -> News:
        """Read the versions above the head, for `learn`. Raises as `read_new`."""
        asked_at = self.monotonic()
        news = await read_new(self.table, self.head.version)
        self.read_at = self.confirmed_at = asked_at
        return news

    def learn(self, news: News) -> None:
        """Move the head to the last of these versions. Raises `StartAgain` when an operator has set the position."""
        if news.manifest is not None:
            self.head = self.head.then(news.found, news.manifest)

    def follow(self, head: Head, *, read_at: float) -> None:
        """Move to a head that was known to be the latest at `read_at`."""
        self.head = head
        self.read_at = self.confirmed_at = read_at

    async def still_latest(self, *, age_max: float, asked_age_max: float) -> bool:
        """Whether the head is still the latest version; asked for when that was known longer than `age_max` ago.

        The question is put again when its answer took longer than `asked_age_max`. Raises `StartAgain` when the table
        went back, or is another one.
        """
        while self.monotonic() - self.read_at > age_max:
            read_at = self.monotonic()
            newest = await self.table.latest_version() or 0
            if newest < self.head.version:
                raise StartAgain(f"the table went back from version {self.head.version} to {newest}")
            if newest > self.head.version:
                return False
            await self.confirm()
            self.read_at, age_max = read_at, asked_age_max
        return True

    async def confirm(self) -> None:
        """See that the head's version still exists and is the same. Raises `StartAgain` when it is not."""
        if not self.head.version:
            return
        asked_at = self.monotonic()
        self.require_same(await self.table.standing(self.head.version))
        self.confirmed_at = asked_at

    def require_same(self, standing: Standing) -> None:
        """Raise `StartAgain` unless the head's version is what it was."""
        require_same(self.head.version, standing)
