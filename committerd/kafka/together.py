"""Asks Kafka the same question about many datasets in one request: what comes meanwhile waits for the next request.

A request costs about a millisecond of the processor, whatever it asks for, and a member that takes over a hundred
tables asks the same of each. A dataset that asks alone waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from kafka import errors

from committerd.errors import CommitterError, QueueUnavailable

_TOGETHER_MAX = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class _Asked(Generic[Item, Result]):
    """An item whose answer somebody waits for."""

    item: Item
    answers: list[Result | CommitterError] = field(default_factory=list)
    """Its answer, once there is one."""


class Together(Generic[Item, Result]):
    """One question about many items. Its functions block, in threads of its lane."""

    def __init__(
        self,
        *,
        one: Callable[[Item], Result],
        many: Callable[[Sequence[Item]], Mapping[Item, Result]],
        lane: CapacityLimiter,
    ) -> None:
        """`one`: asks about an item. `many`: asks about several, and leaves out those about which `one` must ask."""
        self._ask_one = one
        self._ask_many = many
        self._lane = lane
        self._waiting: dict[_Asked[Item, Result], None] = {}
        self._turn = anyio.Lock()

    async def of(self, item: Item) -> Result:
        """The answer about an item, of a request that is sent after this call. Raises the item's error."""
        asked = _Asked[Item, Result](item)
        self._waiting[asked] = None
        try:
            async with self._turn:
                if not asked.answers:
                    await self._ask()
        finally:
            self._waiting.pop(asked, None)
        (answer,) = asked.answers
        if isinstance(answer, CommitterError):
            raise answer
        return answer

    async def _ask(self) -> None:
        """Ask about those that have waited for the longest time; the caller is the first of them."""
        some = list(self._waiting)[:_TOGETHER_MAX]
        items = list(dict.fromkeys(asked.item for asked in some))
        answers = await to_thread.run_sync(partial(self._answers, items), limiter=self._lane, abandon_on_cancel=True)
        for asked in some:
            asked.answers.append(answers[asked.item])
            self._waiting.pop(asked, None)

    def _answers(self, items: Sequence[Item]) -> dict[Item, Result | CommitterError]:
        found: dict[Item, Result | CommitterError] = {}
        if len(items) > 1:
            try:
                found |= self._ask_many(items)
            except CommitterError as error:
                if not _is_about_one(error):
                    return dict.fromkeys(items, error)
        for item in items:
            if item in found:
                continue
            try:
                found[item] = self._ask_one(item)
            except CommitterError as error:
                found[item] = error
                if isinstance(error, QueueUnavailable) and not _is_about_one(error):
                    # Kafka does not respond: the others need not wait for that one after the other.
                    return dict.fromkeys(items, error) | found
        return found


def _is_about_one(error: CommitterError) -> bool:
    """Whether Kafka has responded with an error, which may be about one of the items."""
    return isinstance(error.__cause__, errors.BrokerResponseError)
