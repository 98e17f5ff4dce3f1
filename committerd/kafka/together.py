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

from committerd.errors import CommitterError
from committerd.parts import Parts

_TOGETHER_MAX = 16
_SILENCE = (
    errors.KafkaTimeoutError,
    errors.KafkaConnectionError,
    errors.NodeNotReadyError,
    errors.RequestTimedOutError,
)
"""Errors that say nothing of what was asked: the broker has not responded."""

Item = TypeVar("Item")
Result = TypeVar("Result")
_T = TypeVar("_T")


@dataclass(eq=False, slots=True)
class _Asked(Generic[Item, Result]):
    """An item whose answer somebody waits for."""

    item: Item
    answers: list[Result | CommitterError] = field(default_factory=list)
    """Its answer, once a request has brought one."""


class Together(Generic[Item, Result]):
    """One question about many items. Its functions block, in threads of its lane."""

    def __init__(
        self,
        *,
        one: Callable[[Item], Result],
        many: Callable[[Sequence[Item]], Mapping[Item, Result]],
        lane: CapacityLimiter,
        parts: Parts,
    ) -> None:
        """`one`: asks about an item. `many`: asks about several, and leaves out those about which `one` must ask.

        If `many` raises what it should not, `one` asks about each: who may be to blame has that error alone.
        """
        self._parts = parts
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
                if asked in self._waiting:
                    await self._ask()
        finally:
            self._waiting.pop(asked, None)
        if not asked.answers:  # asked about alone, while the next request is on its way
            return await self._call(partial(self._ask_one, item))
        (answer,) = asked.answers
        if isinstance(answer, CommitterError):
            raise answer
        return answer

    async def _ask(self) -> None:
        """Ask about those that have waited for the longest time; the caller is the first of them."""
        some = list(self._waiting)[:_TOGETHER_MAX]
        items = list(dict.fromkeys(asked.item for asked in some))
        answers = await self._call(partial(self._answers, items))
        for asked in some:
            if asked.item in answers:
                asked.answers.append(answers[asked.item])
            self._waiting.pop(asked, None)

    async def _call(self, work: Callable[[], _T]) -> _T:
        return await to_thread.run_sync(work, limiter=self._lane, abandon_on_cancel=True)

    def _answers(self, items: Sequence[Item]) -> Mapping[Item, Result | CommitterError]:
        """The answers of one request, without items about which it does not say enough."""
        if len(items) == 1:
            try:
                return {items[0]: self._ask_one(items[0])}
            except CommitterError as error:
                return {items[0]: error}
        try:
            return self._ask_many(items)
        except CommitterError as error:
            return dict.fromkeys(items, error) if isinstance(error.__cause__, _SILENCE) else {}
        except Exception as error:  # noqa: BLE001  # logged, and of no table alone
            self._parts.failed("questions", error)
            return {}
