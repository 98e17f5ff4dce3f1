"""Reads the dead letter topic."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from committerd.commands.printing import ProgressLine
from committerd.errors import SettingsError
from committerd.kafka.operator import TopicOperator
from committerd.queue.dead_letter import Letter, decode_letter

PARTITION = 0
"""Committers write to this partition alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A choice of dead letters; an empty set chooses all."""

    offsets: frozenset[int] = frozenset()
    reasons: frozenset[str] = frozenset()
    since_ms: int | None = None

    def takes(self, letter: Letter) -> bool:
        """Whether the choice includes the letter, apart from its age."""
        return (not self.offsets or letter.offset in self.offsets) and (
            not self.reasons or letter.reason in self.reasons
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A letter without the record: few bytes, however large that is."""

    offset: int
    timestamp_ms: int
    uuid: str
    operation: str
    status: str
    reason: str
    message: str
    place: str


def summary_of(letter: Letter) -> Summary:
    """The letter without its record."""
    transaction = letter.transaction
    return Summary(
        offset=letter.offset,
        timestamp_ms=letter.timestamp_ms,
        uuid=transaction.uuid,
        operation=transaction.WhichOneof("operation") or "",
        status=letter.status,
        reason=letter.reason,
        message=letter.message,
        place=letter.place,
    )


async def wanted_letters(operator: TopicOperator, wanted: Selection) -> AsyncGenerator[Letter, None]:
    """The chosen letters in offset order."""
    topic = operator.topics.dead
    bounds = await operator.bounds(topic)
    if wanted.since_ms is not None:
        bounds = await operator.since(topic, wanted.since_ms)
    start, end = bounds[PARTITION]
    if wanted.offsets:
        start, end = max(start, min(wanted.offsets)), min(end, max(wanted.offsets) + 1)
    async with aclosing(_letters(operator, start, end)) as letters:
        async for letter in letters:
            if letter is not None and wanted.takes(letter):
                yield letter


async def read_summaries(operator: TopicOperator, wanted: Selection, *, newest: int) -> tuple[list[Summary], int]:
    """The `newest` of the chosen letters in offset order, and the number of all chosen letters."""
    total, kept = 0, deque[Summary](maxlen=newest)
    async with aclosing(wanted_letters(operator, wanted)) as letters:
        async for letter in letters:
            kept.append(summary_of(letter))
            total += 1
    return list(kept), total


async def one_letter(operator: TopicOperator, offset: int) -> Letter:
    """The letter at an offset. Raises `SettingsError` if there is none."""
    async with aclosing(wanted_letters(operator, Selection(offsets=frozenset({offset})))) as letters:
        async for letter in letters:
            return letter
    start, end = (await operator.bounds(operator.topics.dead))[PARTITION]
    raise SettingsError(
        f"there is no dead letter at offset {offset} of {operator.topics.dead}, which holds {start} to {end} "
        "(exclusive)"
    )


async def letters_below(operator: TopicOperator, offset: int) -> AsyncGenerator[Letter | None, None]:
    """The letters below an offset, from the topic's start; None for a record that is not a dead letter."""
    start, _ = (await operator.bounds(operator.topics.dead))[PARTITION]
    async with aclosing(_letters(operator, start, offset)) as letters:
        async for letter in letters:
            yield letter


async def _letters(operator: TopicOperator, start: int, end: int) -> AsyncGenerator[Letter | None, None]:
    progress = ProgressLine("dead letters read", end - start)
    async with aclosing(operator.stream(operator.topics.dead, {PARTITION: (start, end)})) as batches:
        async for batch in batches:
            for _, record in batch:
                yield decode_letter(record)
            progress.add(len(batch))
