"""What an operator may do to a position by hand: adopt or rewind it, release an application.

Each is one version with the reason in it. A running committer meets it like any version of another committer and starts
again; one that refuses to run finds it when it looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from committerd.committer.head import StartAgain
from committerd.committer.loading import Loaded, Loading, load, read_new
from committerd.committer.starting import read_facts
from committerd.errors import CommitterError, OutcomeUnknown, RefusedToRun, SettingsError, StoreUnavailable, Unavailable
from committerd.queue.grouping import position_only
from committerd.queue.outcomes import Settled
from committerd.queue.port import Queue
from committerd.queue.position import AppMark, Position, encode_metadata, kept_marks, start_of
from committerd.queue.race import Found, Race, race
from committerd.queue.start import QueueFacts, refuse_rewritten_log, starting_position
from committerd.stores.port import Created
from committerd.table.backoff import Backoff
from committerd.table.landing import land
from committerd.table.prepare import Judged, Prepared, World, build_version
from committerd.table.versions import Table
from committerd.table.writing import complete, put, write_files

_ATTEMPTS = 20
"""Versions that other writers may put in between before we give up."""
_OTHER_LOG = frozenset({"topic_id", "log_rewritten"})
"""Refusals after which an offset of the log says nothing about the record that had it before."""
_ADOPTED = _OTHER_LOG | {"position_beyond_end", "position_below_log_start", "position_went_back", "keys_missing"}
"""Refusals that `position adopt` is the way out of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Table and queue as they stand, and whether a committer would run on them."""

    loaded: Loaded
    facts: QueueFacts
    refusal: RefusedToRun | None
    """Why a committer refuses to run; None = it runs."""


async def look(queue: Queue, table: Table, loading: Loading) -> Situation:
    """Do what Start does, without answering anything. Raises `CommitterError` when both change too fast to be seen."""
    try:
        facts, loaded = await read_facts(queue, table, loading)
    except StartAgain as reason:
        raise CommitterError(f"{reason}: look again", code="contended") from reason
    refusal = None
    try:
        position = starting_position(loaded.position, facts, table_exists=loaded.version > 0)
        if facts.log_start <= position.last_offset:
            refuse_rewritten_log(position, await queue.read(position.last_offset, position.last_offset + 1))
    except RefusedToRun as error:
        refusal = error
    return Situation(loaded=loaded, facts=facts, refusal=refusal)


def answered(situation: Situation) -> Position | None:
    """What is known to be answered: all that this position passes, in the last era. None where too little is known.

    The group's offset and the table's position say it of all records below them. Without both only the outcomes do, and
    only where all of them were read.
    """
    carried, facts = situation.loaded.position, situation.facts
    era = _last_era(situation)
    positions = []
    if carried is not None and carried.era == era and carried.identity == facts.identity:
        positions.append(replace(carried, next_offset=min(carried.next_offset, facts.log_end)))
    acknowledged = facts.acknowledged(era)
    if acknowledged is not None:
        positions.append(start_of(facts.identity, min(acknowledged, facts.log_end)))
    if not positions and not facts.outcomes_are_all:
        return None
    next_offset = max([facts.log_start, *(one.next_offset for one in positions)])
    told = {*facts.answered(era), *(offset for one in positions for offset in one.settled)}
    while next_offset in told and next_offset < facts.log_end:
        next_offset += 1
    ahead = tuple(sorted(offset for offset in told if next_offset < offset < facts.log_end))
    return replace(start_of(facts.identity, next_offset), settled=ahead)


def unanswered_below(situation: Situation, offset: int) -> int | None:
    """How many offsets of the log below this one have no known answer; None where that is not known."""
    known, log_start = _answered_here(situation), situation.facts.log_start
    if known is None:
        return None
    return max(offset - max(known.next_offset, log_start), 0) - sum(one < offset for one in known.settled)


def adopted(situation: Situation, offset: int | None) -> Position:
    """The position that takes on the topic as it is now. `offset` None = where the cause says.

    Where the cause says, every record that the position passes is known to have an answer, or the log has lost it:
    those that were settled ahead stay settled, and the ones before them are judged. Raises `SettingsError` for an
    offset outside the log, and where neither cause nor outcomes tell one.
    """
    facts = situation.facts
    if offset is not None:
        _require_in_log(offset, facts)
        return replace(start_of(facts.identity, offset), era=_last_era(situation) + 1)
    code = situation.refusal.code if situation.refusal else ""
    if code not in _ADOPTED:
        raise SettingsError(
            "a committer runs on this table and topic as they are: say with --offset from where to go on instead"
        )
    position = _answered_here(situation)
    if position is None:
        raise SettingsError(
            "it is not known which records have an outcome: the consumer group has no offset, no version of the table "
            "carries a position, and the outcomes topic holds more than are read here. Say with --offset from where "
            "to go on: records below it that have no outcome are not committed, and records from it on are judged again"
        )
    return replace(position, era=_last_era(situation) + 1)


def rewound(situation: Situation, offset: int) -> Position:
    """The position put back to `offset`: records from there on are judged again.

    Raises `SettingsError` for an offset outside the log or not below the position.
    """
    carried, facts = situation.loaded.position, situation.facts
    reached = carried.next_offset if carried is not None else 0
    told = max([facts.group_offset or 0, reached, *(o + 1 for o in facts.answered(0))])
    if offset >= told:
        raise SettingsError(f"offset {offset} is not behind what was answered, {told}: `position adopt` goes forward")
    _require_in_log(offset, facts)
    return replace(start_of(facts.identity, offset), era=_last_era(situation) + 1)


def released(marks: Mapping[str, AppMark], app_id: str) -> dict[str, AppMark]:
    """The marks after the next run of `app_id` may start anew. Raises `SettingsError` when there is no such mark."""
    mark = marks.get(app_id)
    if mark is None or mark.released:
        known = ", ".join(sorted(a for a, m in marks.items() if not m.released)) or "none"
        raise SettingsError(f"the table has no mark of application {app_id!r}; it has: {known}")
    used_ms = max(one.used_ms for one in marks.values())  # marks age by each other, and not by this machine's clock
    return dict(marks) | {app_id: replace(mark, run="", version=-1, life=mark.life + 1, used_ms=used_ms)}


async def write(
    loaded: Loaded,
    loading: Loading,
    world: World,
    *,
    new_position: Position | None,
    change_marks: Callable[[Mapping[str, AppMark]], Mapping[str, AppMark]],
    reason: str,
    marks_max: int,
) -> int:
    """Commit one version with this position (None = the one that the table has) and these marks; returns its number.

    Raises `CommitterError` when other writers keep taking the number, or when a committer moves the position meanwhile.
    """
    for _ in range(_ATTEMPTS):
        table, position = loaded.table, new_position or loaded.position
        if position is None:
            raise SettingsError("no version of the table carries a position: no committer has committed to it yet")
        marks = kept_marks(change_marks(loaded.marks), most=marks_max)
        uuid = str(world.new_uuid())
        transaction = position_only(position, marks, read_version=loaded.version, uuid=uuid, reason=reason)
        prepared = await build_version(
            table,
            loaded.manifest,
            Judged(transaction=transaction),
            world=world,
            table_metadata=encode_metadata(position, marks),
            holds_records=False,
        )
        own = Found(
            settled=Settled(version=prepared.version, uuid=transaction.uuid, operation="update_config", ours=True),
            position=position,
            marks=marks,
        )
        if loaded.newest_ours:
            await complete(table, loaded.newest_ours)
        await write_files(table, prepared)
        found = await land(_ByHand(table, prepared), Backoff(world.random))
        if not found or race(own, found) is Race.OURS:
            return prepared.version
        if new_position is not None and any(one.settled.ours for one in found):
            raise CommitterError(
                "a committer has committed meanwhile: look again with `committerd position show`", code="contended"
            )
        loaded = await _load_again(table, loading)
    raise CommitterError(
        f"{_ATTEMPTS} other versions were committed meanwhile: stop the other writers for a moment, and try again",
        code="contended",
    )


async def _load_again(table: Table, loading: Loading) -> Loaded:
    try:
        return await load(table, loading)
    except StartAgain as reason:
        raise CommitterError(f"{reason}: try again", code="contended") from reason


class _ByHand:
    """A version made by hand, on the way to its number. The result is what was found there; empty = it was created."""

    def __init__(self, table: Table, prepared: Prepared) -> None:
        self._table = table
        self._prepared = prepared

    async def put(self) -> Sequence[Found] | None:
        return () if isinstance(await put(self._table, self._prepared), Created) else None

    async def read_back(self, *, taken: bool) -> Sequence[Found] | None:
        try:
            news = await read_new(self._table, self._prepared.version - 1)
        except StoreUnavailable:
            return None
        return news.found or None

    def failed(self, error: OutcomeUnknown | Unavailable, *, may_be_there: bool) -> None:
        if not may_be_there:
            raise error


def _answered_here(situation: Situation) -> Position | None:
    """As `answered`; of a log that is another one than the position's nothing is."""
    code = situation.refusal.code if situation.refusal else ""
    if code in _OTHER_LOG:
        return start_of(situation.facts.identity, situation.facts.log_start)
    return answered(situation)


def _last_era(situation: Situation) -> int:
    """The highest era that the table or an answer has named."""
    eras = [situation.facts.group_era or 0, *(o.era for o in situation.facts.outcomes)]
    if situation.loaded.position is not None:
        eras.append(situation.loaded.position.era)
    return max(eras)


def _require_in_log(offset: int, facts: QueueFacts) -> None:
    if not facts.log_start <= offset <= facts.log_end:
        raise SettingsError(
            f"offset {offset} is outside the log of {facts.identity.topic}, which holds {facts.log_start} to "
            f"{facts.log_end} (exclusive)"
        )
