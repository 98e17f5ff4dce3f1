"""Stages dead letters again, except letters that were committed since."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

from committerd.commands.dead.letters import Selection, Summary, summary_of, wanted_letters
from committerd.commands.printing import ProgressLine, Reading
from committerd.commands.system import monotonic, open_place, stores_of, wall_clock
from committerd.committer.decoding import Decoder
from committerd.committer.head import StartAgain
from committerd.committer.loading import Loading, load
from committerd.committer.record_history import look_up
from committerd.daemon.producers_file import admission, producer_of_command
from committerd.errors import CommitterError
from committerd.kafka.operator import TopicOperator
from committerd.queue.dead_letter import Letter, refuse_replay
from committerd.queue.dedupe import Refused
from committerd.queue.ledger import NOT_SEEN
from committerd.queue.port import Publication
from committerd.queue.position import Position
from committerd.queue.producers import Signing
from committerd.settings.load import Settings
from committerd.table.fetching import Fetcher, run
from committerd.table.versions import Table
from committerd_common.messages import DecodeError, Outcome, Transaction
from committerd_common.request import Request

PRODUCER = "committerd-replay"
"""As which replays are staged, where records are signed."""
_PART_BYTES = 16 * 1024 * 1024
"""Bytes of letters that are staged together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result for one letter."""

    letter: Summary
    refused: str
    """Why it is not staged again; empty if it is."""
    staged_offset: int | None = None
    """Offset of the replay in the staged topic, once it is staged."""


async def replay_letters(
    configured: Settings, operator: TopicOperator, wanted: Selection, *, apply: bool
) -> list[Replay]:
    """Judge the letters and, with `apply`, stage the letters that are not refused."""
    signing = _signing(configured, operator)
    replays = await _judged(configured, operator, wanted, signing)
    good = frozenset(one.letter.offset for one in replays if not one.refused)
    if not apply or not good:
        return replays
    staged = await _staged(operator, good, signing)
    return [
        replace(one, staged_offset=staged[one.letter.offset])
        if one.letter.offset in staged
        else replace(one, refused=one.refused or "Kafka deleted the letter meanwhile")
        for one in replays
    ]


def _signing(configured: Settings, operator: TopicOperator) -> Signing | None:
    """How replays are signed; None if the queue takes records that nobody has signed."""
    producer = producer_of_command(configured.commit.producers_file, PRODUCER)
    return None if producer is None else Signing(topic=operator.topics.staged, producer=producer.now())


async def _staged(operator: TopicOperator, offsets: frozenset[int], signing: Signing | None) -> dict[int, int]:
    """Stage the letters at these offsets, a batch at a time; returns the offset at which each is staged."""
    staged: dict[int, int] = {}
    part, size = dict[int, Publication](), 0
    async with aclosing(wanted_letters(operator, Selection(offsets=offsets))) as letters:
        async for letter in letters:
            part[letter.offset], size = letter.replay(signing), size + len(letter.value)
            if size > _PART_BYTES:
                staged |= await _stage(operator, part)
                part, size = {}, 0
    return staged | await _stage(operator, part)


async def _stage(operator: TopicOperator, part: Mapping[int, Publication]) -> dict[int, int]:
    if not part:
        return {}
    return dict(zip(part, await operator.stage(list(part.values())), strict=True))


async def _judged(
    configured: Settings, operator: TopicOperator, wanted: Selection, signing: Signing | None
) -> list[Replay]:
    """Judge the letters one after the other; of each, only what is needed for its outcome is kept."""
    judged: list[tuple[Summary, Letter, Request | Refused]] = []
    async with stores_of(configured) as stores:
        table = Table(await open_place(stores, configured.dataset))
        decoder = Decoder(
            aliases=configured.dataset.place_aliases,
            transaction_bytes_max=configured.commit.transaction_bytes_max,
            admission=admission(configured.commit.producers_file, topic=operator.topics.staged),
        )
        async with aclosing(wanted_letters(operator, wanted)) as letters:
            async for letter in letters:
                decoded = await decoder.decode(letter.as_staged(signing), table)
                if isinstance(decoded, Request):
                    decoded = replace(decoded, transaction=Transaction(uuid=decoded.uuid))
                judged.append((summary_of(letter), replace(letter, key=None, value=b"", headers=()), decoded))
        if not judged:
            return []
        try:
            loaded = await load(table, Loading(monotonic=monotonic, report=Reading()))
        except StartAgain as reason:
            raise CommitterError(f"{reason}: try again", code="contended") from reason
        uuids = {one.uuid for _, _, one in judged if isinstance(one, Request)}
        asked = {(uuid, 0) for uuid in uuids}
        known = {uuid: one for (uuid, _), one in (await run(look_up(asked, loaded.ledger), Fetcher(table))).items()}
    outcomes = await _outcomes_of(operator, uuids)
    waiting = await _waiting(operator, loaded.position)
    now_ms = int(wall_clock().timestamp() * 1000)
    replays, seen = [], dict[str, int]()
    for summary, letter, one in judged:
        uuid = one.uuid if isinstance(one, Request) else ""
        refused = refuse_replay(
            letter,
            one,
            earlier=known.get(uuid, NOT_SEEN),
            marks=loaded.marks,
            outcomes=outcomes.get(uuid, ()),
            waiting=waiting,
            now_ms=now_ms,
        )
        if not refused and uuid in seen:
            refused = f"letter {seen[uuid]} is of the same transaction"
        if not refused:
            seen[uuid] = letter.offset
        replays.append(Replay(letter=summary, refused=refused))
    return replays


async def _outcomes_of(operator: TopicOperator, uuids: Collection[str]) -> dict[str, list[Outcome]]:
    """The published outcomes of these transactions that the topic still holds: their versions may be cleaned up."""
    found: defaultdict[str, list[Outcome]] = defaultdict(list)
    if not uuids:
        return found
    wanted = {uuid.encode() for uuid in uuids}
    bounds = await operator.bounds(operator.topics.outcomes)
    progress = ProgressLine("outcomes read", sum(end - start for start, end in bounds.values()))
    async with aclosing(operator.stream(operator.topics.outcomes, bounds)) as batches:
        async for batch in batches:
            for _, record in batch:
                if record.key in wanted and (outcome := _outcome(record.value)) is not None:
                    found[outcome.uuid].append(outcome)
            progress.add(len(batch))
    return found


def _outcome(value: bytes) -> Outcome | None:
    try:
        return Outcome.FromString(value)
    except DecodeError:
        return None


async def _waiting(operator: TopicOperator, position: Position | None) -> dict[str, int]:
    """Replays that the table has not settled: staged offset by the value of header `replay-of`."""
    start, end = (await operator.bounds(operator.topics.staged))[0]
    if position is not None:
        start = max(start, min(position.next_offset, end))
    found: dict[str, int] = {}
    progress = ProgressLine("staged records read", end - start)
    async with aclosing(operator.stream(operator.topics.staged, {0: (start, end)})) as batches:
        async for batch in batches:
            for _, record in batch:
                place = dict(record.headers).get("replay-of")
                if place is not None and (position is None or not position.passes(record.offset)):
                    found[place.decode("utf-8", "replace")] = record.offset
            progress.add(len(batch))
    return found
