"""The operator's changes by hand: pause, adopt or rewind the position, release an application, make the table anew.

Each change is one version, which holds the reason. A running committer treats it like any version of another committer,
and does Start again. A committer that refuses to run finds it when it retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from committerd.committer.head import StartAgain
from committerd.committer.loading import Loaded, Loading, after, load, position_of
from committerd.committer.older_history import BATCH_MAX
from committerd.committer.starting import facts_around, read_facts, require_same_log
from committerd.concurrency import Concurrently, map_each
from committerd.errors import CommitterError, RefusedToRun, SettingsError, StoreUnavailable
from committerd.lance.versions.draft import CreateOptions
from committerd.queue.grouping import position_only
from committerd.queue.offsets import Offsets
from committerd.queue.port import Queue, record_sha256
from committerd.queue.position import (
    AppMark,
    LostHistory,
    Pause,
    Position,
    encode_metadata,
    kept_marks,
    start_of,
)
from committerd.queue.start import QueueFacts, era_of, starting_position
from committerd.table.backoff import Backoff, until_done
from committerd.table.case import Sources
from committerd.table.judge import Judged
from committerd.table.landing import land_alone
from committerd.table.prepare import build
from committerd.table.sampling import Sampled, sample
from committerd.table.versions import Table
from committerd.table.writing import complete, write_transaction
from committerd_common.messages import Transaction

_log = logging.getLogger(__name__)

_SECONDS_MAX = 180.0
"""Seconds before giving up, when other writers keep taking the version number.

A busy committer leaves a gap once in `store.recheck_seconds`, which is at most 60, and not each attempt meets it.
"""
_AHEAD = 8
"""How many versions a busy committer may be ahead; they are looked for at once."""
_LOST_ITS_END = frozenset({"position_beyond_end", "log_rewritten"})
"""Causes of a refusal to run for which later offsets of the log may hold other records than those that were settled."""
_OTHER_LOG = _LOST_ITS_END | {"topic_id"}
"""Causes of a refusal to run for which an offset no longer identifies the record that had it before."""
_ADOPTED = _OTHER_LOG | {"position_below_log_start", "position_went_back", "keys_missing"}
"""Causes of a refusal to run that `position adopt` resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The state of table and queue, and whether a committer would run on them."""

    loaded: Loaded
    facts: QueueFacts
    refusal: RefusedToRun | None
    """Why a committer would refuse to run; None = it would run."""
    proven: Position | None = None
    """If the log lost its end: the highest position of a version whose last record the log still has. The log holds all
    records up to that record as the table settled them. None = no version proves any.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The state of table and queue, for a command that only shows it."""

    table: Sampled | Loaded
    facts: QueueFacts
    refusal: RefusedToRun | None
    """As in `Situation`."""


async def show(queue: Queue, table: Table, progress: Callable[[int], Callable[[int], None]], loading: Loading) -> Shown:
    """As `look`, from a sample of the versions; `sample` says what it may miss.

    If a committer would refuse the position that the sample finds, `look` reads the history: a Restore may have undone
    a later version of the queue.

    `progress`: given the number of versions, returns what is called with the number of those that were just read.
    """

    async def read(acknowledged: object) -> Sampled:
        versions = await table.shown_versions()
        return await sample(table, versions, report=progress(len(versions)))

    try:
        facts, found = await facts_around(queue, read)
        refusal = await _refusal(queue, facts, found.position, table_exists=found.version > 0)
    except StartAgain as reason:
        raise CommitterError(f"{reason}: look again", code="contended") from reason
    if refusal is not None and found.position is not None:
        seen = await look(queue, table, loading)
        return Shown(table=seen.loaded, facts=seen.facts, refusal=seen.refusal)
    return Shown(table=found, facts=facts, refusal=refusal)


async def _refusal(
    queue: Queue, facts: QueueFacts, carried: Position | None, *, table_exists: bool
) -> RefusedToRun | None:
    """Why a committer would refuse to run; None = it would run."""
    try:
        position = starting_position(carried, facts, table_exists=table_exists)
        await require_same_log(queue, position, facts)
    except RefusedToRun as refusal:
        return refusal
    return None


async def look(queue: Queue, table: Table, loading: Loading) -> Situation:
    """Read table and queue as Start does, without publishing anything.

    Reads the history down to the newest version of the queue, and the rest only if the log has lost its end. Raises
    `CommitterError` (`contended`) when table or topic change too fast to be read.
    """
    try:
        facts, loaded = await read_facts(queue, table, replace(loading, later=True))
        refusal = await _refusal(queue, facts, loaded.position, table_exists=loaded.version > 0)
    except StartAgain as reason:
        raise CommitterError(f"{reason}: look again", code="contended") from reason
    proven = None
    if refusal is not None and refusal.code in _LOST_ITS_END:
        proven = await _proven(queue, loaded, facts)
    return Situation(loaded=loaded, facts=facts, refusal=refusal, proven=proven)


async def _proven(queue: Queue, loaded: Loaded, facts: QueueFacts) -> Position | None:
    """Return the position of the newest version whose last record the log still has; None if there is none.

    Each version carries the hash of the last record that its position passes. If the log still has that record, the log
    is unchanged up to it, because a log only loses its end. Searches the versions by bisection. It takes the highest
    position if positions grow from version to version; if an operator has set one back, it may take a lower one.
    """
    while not loaded.older.is_read:
        await loaded.older.read(BATCH_MAX)
    versions = list(loaded.older.outcome_versions.between(facts.log_start, facts.log_end - 1))  # newest first
    proven, newest, oldest = None, 0, len(versions)
    while newest < oldest:
        middle = (newest + oldest) // 2
        position = await position_of(loaded.table, versions[middle])
        if position is not None and await _holds_last_record(queue, position, facts):
            proven, oldest = position, middle
        else:
            newest = middle + 1
    return proven


async def _holds_last_record(queue: Queue, position: Position, facts: QueueFacts) -> bool:
    """Whether the log still has the last record that this position passes."""
    offset = position.last_offset
    if position.identity != facts.identity or not facts.log_start <= offset < facts.log_end:
        return False
    records = await queue.read(offset, offset + 1)
    return any(one.offset == offset and record_sha256(one) == position.last_sha256 for one in records)


def with_outcomes(situation: Situation) -> Position | None:
    """Return the position that passes exactly the records known to have an outcome in the last era.

    The group offset and the table's position prove that for all records below them. Without both, only the outcomes
    topic does, and only if all its outcomes were read; None when they were not.
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
    known = Offsets.of(facts.with_outcome(era))
    for one in positions:
        known = known.union(one.settled)
    next_offset = min(known.first_outside(next_offset), facts.log_end)
    position = replace(start_of(facts.identity, next_offset), settled=known.within(next_offset, facts.log_end))
    return position.proven_by(positions[0]) if positions else position


def undecided_below(situation: Situation, offset: int) -> int | None:
    """Return how many offsets of the log below this one have no known outcome; None when too little is known."""
    known, log_start = _known_here(situation), situation.facts.log_start
    if known is None:
        return None
    return max(offset - max(known.next_offset, log_start), 0) - len(known.settled.within(0, offset))


def adopted(situation: Situation, offset: int | None) -> Position:
    """Return the position for `position adopt`, which accepts the topic as it is now, in a new era.

    `offset`: the next offset to judge; None = derived from the cause of the refusal to run. A derived position passes
    only records that are known to have an outcome, or that the log has lost. Offsets that were settled ahead stay
    settled, and the records before them are judged.

    Raises `SettingsError` for an offset outside the log, and when no offset can be derived.
    """
    facts = situation.facts
    if offset is not None:
        _require_in_log(offset, facts)
        chosen = start_of(facts.identity, offset)
        return replace(chosen, era=_last_era(situation) + 1, lost=_lost_after(situation, chosen))
    code = situation.refusal.code if situation.refusal else ""
    if code not in _ADOPTED:
        raise SettingsError(
            "a committer would run on this table and topic as they are: give --offset to continue from elsewhere"
        )
    position = _require_known(
        situation,
        "Give --offset to say where to continue: records below it that have no outcome are not committed, and records "
        "from it on are judged again",
    )
    return replace(position, era=_last_era(situation) + 1, lost=_lost_after(situation, position))


def rewound(situation: Situation, offset: int) -> Position:
    """Return the position for `position rewind`: back at `offset`, in a new era; records from there are judged again.

    Raises `SettingsError` for an offset outside the log, or beyond the last one that is known to have an outcome.
    """
    carried, facts = situation.loaded.position, situation.facts
    reached = carried.next_offset if carried is not None else 0
    known = max([facts.acknowledged(0) or 0, reached, *(o + 1 for o in facts.with_outcome(0))])
    if offset >= known:
        raise SettingsError(
            f"offset {offset} is not below {known}, where the outcomes end: `position adopt` goes forward"
        )
    _require_in_log(offset, facts)
    # Also of the records between the table's own position and this offset: the audit names those that are lost.
    start = min(offset, reached) if carried is not None and carried.identity == facts.identity else offset
    return replace(
        start_of(facts.identity, offset), era=_last_era(situation) + 1, lost=_lost(situation, start, facts.log_end)
    )


def released(marks: Mapping[str, AppMark], app_id: str) -> dict[str, AppMark]:
    """Return the marks with that of `app_id` released, so that its next run may start over.

    Raises `SettingsError` when the table has no such mark.
    """
    mark = marks.get(app_id)
    if mark is None or mark.released:
        known = ", ".join(sorted(a for a, m in marks.items() if not m.released)) or "none"
        raise SettingsError(f"the table has no mark of application {app_id!r}; it has: {known}")
    used_ms = max(one.used_ms for one in marks.values())  # marks age by each other, not by this machine's clock
    return dict(marks) | {app_id: replace(mark, run="", version=-1, life=mark.life + 1, used_ms=used_ms)}


async def write_released(loaded: Loaded, loading: Loading, sources: Sources, app_id: str, *, reason: str) -> int:
    """Commit one version that releases the mark of `app_id`; returns its number. Raises as `released` and `write`."""
    return await write(
        loaded,
        loading,
        sources,
        new_position=None,
        change_marks=lambda marks: released(marks, app_id),
        reason=reason,
    )


def recreated(situation: Situation) -> Position:
    """Return the position of a table that is made anew: it passes the records that have an outcome, in a new era.

    Raises `SettingsError` when it is not known which ones have one.
    """
    position = _require_known(situation, "Use `committerd position adopt --offset` first, to say where to continue")
    return replace(position, era=_last_era(situation) + 1, lost=None)


async def create(
    table: Table,
    sources: Sources,
    *,
    transaction: Transaction,
    options: CreateOptions,
    position: Position,
    pause: Pause | None,
    reason: str,
) -> int:
    """Create the table with an Overwrite, whose version carries position and pause; returns its number.

    Raises `CommitterError` (`table_exists`) when there is a table.
    """
    if await table.latest():
        raise CommitterError(f"there is a table at {table.uri} still, or again: look at it", code="table_exists")
    own = Transaction()
    own.CopyFrom(transaction)
    own.uuid, own.read_version = str(sources.new_uuid()), 0
    noted = position_only(position, {}, read_version=0, uuid=own.uuid, reason=reason, pause=pause)
    own.transaction_properties.update(noted.transaction_properties)
    prepared = await build(
        table,
        None,
        Judged(transaction=own, create=options),
        sources=sources,
        table_metadata=encode_metadata(position, {}, pause),
    )
    if not await land_alone(table, prepared, Backoff(sources.random)):
        raise CommitterError(f"somebody else has just created a table at {table.uri}", code="table_exists")
    return prepared.version


async def write(
    loaded: Loaded,
    loading: Loading,
    sources: Sources,
    *,
    new_position: Position | None,
    change_marks: Callable[[Mapping[str, AppMark]], Mapping[str, AppMark]] = lambda marks: marks,
    change_pause: Callable[[Pause | None], Pause | None] = lambda pause: pause,
    reason: str,
) -> int:
    """Commit one version that sets position, marks and pause; returns its number.

    `new_position`: None = keep the table's. `change_marks`, `change_pause`: return the new marks and the new pause,
    given those of the table. They may raise, and are called again when another version was faster.

    Raises `CommitterError` (`contended`) when other writers keep taking the number, or when a committer commits
    meanwhile, and `SettingsError` when the table has no position.
    """
    until = loading.monotonic() + _SECONDS_MAX
    while loading.monotonic() < until:
        table, position = loaded.table, new_position or loaded.position
        if position is None:
            raise SettingsError("no version of the table carries a position: no committer has committed to it yet")
        position = replace(position, branch=loaded.branch)
        marks, pause = kept_marks(change_marks(loaded.marks)), change_pause(loaded.pause)
        transaction = position_only(
            position, marks, read_version=loaded.version, uuid=str(sources.new_uuid()), reason=reason, pause=pause
        )
        prepared = await build(
            table,
            loaded.manifest,
            Judged(transaction=transaction),
            sources=sources,
            table_metadata=encode_metadata(position, marks, pause),
            holds_records=False,
        )
        complete_ours = partial(complete, table, loaded.newest_ours)
        completed = Concurrently(complete_ours)
        put = partial(land_alone, table, prepared, Backoff(sources.random), files_first=False)
        if await (completed.of(put) if loaded.newest_ours else put()):
            # The version is there: an error now would say that it is not.
            if loaded.newest_ours and not completed.done:
                await until_done(complete_ours, Backoff(sources.random), _report_failure)
            await until_done(partial(write_transaction, table, prepared), Backoff(sources.random), _report_failure)
            return prepared.version
        newest_known = loaded.newest_ours
        loaded = await _followed(loaded, prepared.version) or await _load_again(table, loading)
        if new_position is not None and loaded.newest_ours != newest_known:
            raise CommitterError(
                "a committer has committed meanwhile: look again with `committerd position show`", code="contended"
            )
    raise CommitterError(
        f"other versions were faster for {_SECONDS_MAX:g} s: stop the other writers for a moment, and try again",
        code="contended",
    )


def _report_failure(error: StoreUnavailable) -> None:
    _log.warning("commit.retried", extra={"error": str(error)})


async def _followed(loaded: Loaded, taken: int) -> Loaded | None:
    """Return the state after the version of a committer that took our number, or the latest that follows it already.

    A committer with work puts its next version as soon as the last one is there; but once in `store.recheck_seconds` it
    first looks whether others have committed (`CurrentHead.looked_at`). The committer makes two requests in that gap,
    so a writer must find the latest version with one, as here. None if another writer took our number.
    """
    states = await map_each(range(taken, taken + _AHEAD), partial(after, loaded))
    return next((one for one in reversed(states) if one is not None), None)


async def _load_again(table: Table, loading: Loading) -> Loaded:
    try:
        return await load(table, loading)
    except StartAgain as reason:
        raise CommitterError(f"{reason}: try again", code="contended") from reason


def _known_here(situation: Situation) -> Position | None:
    """As `with_outcomes`; if the log is another one or lost its end, only records proven unchanged have one."""
    facts, code = situation.facts, situation.refusal.code if situation.refusal else ""
    if code not in _OTHER_LOG:
        return with_outcomes(situation)
    carried, proven = situation.loaded.position, situation.proven
    if carried is None or proven is None:
        return start_of(facts.identity, facts.log_start)
    # What lies behind the proven record may be other records, although the table has settled these offsets.
    unchanged = max(proven.last_offset + 1, facts.log_start)
    next_offset = max(min(carried.next_offset, unchanged), facts.log_start)
    known = start_of(facts.identity, next_offset).proven_by(proven)
    return replace(known, settled=carried.settled.within(next_offset, unchanged))


def _require_known(situation: Situation, remedy: str) -> Position:
    """As `_known_here`; raises `SettingsError`, which ends with the remedy, when too little is known."""
    position = _known_here(situation)
    if position is None:
        raise SettingsError(
            "it is not known which records have an outcome: the consumer group has no offset, no version of the table "
            f"carries a position, and the outcomes topic holds more than are read here. {remedy}"
        )
    return position


def _lost_after(situation: Situation, position: Position) -> LostHistory | None:
    """Return what the table has lost, for the records that are to be judged from this adopted position on."""
    carried, code = situation.loaded.position, situation.refusal.code if situation.refusal else ""
    if code == "position_went_back":
        return _lost(situation, position.next_offset, situation.facts.log_end)
    if carried is None or carried.lost is None or carried.identity != position.identity or code in _OTHER_LOG:
        return None
    known = carried.lost
    return known._replace(start=position.next_offset) if position.next_offset < known.end else None


def _lost(situation: Situation, start: int, end: int) -> LostHistory:
    """Return what a table that was put back has lost, for the records of this half-open range of offsets.

    What it carries itself was in the table before, so it has kept all up to its newest version of the queue. Later ones
    may be those of other writers, who have written to it since.
    """
    loaded = situation.loaded
    known = loaded.position.lost if loaded.position is not None else None
    kept, latest = loaded.newest_ours, loaded.version
    if known is not None:
        kept, latest = min(kept, known.kept), min(latest, known.latest)
    return LostHistory(kept=kept, latest=latest, start=start, end=end)


def _last_era(situation: Situation) -> int:
    """Return the highest era in the table, the group offset and the outcomes."""
    eras = [era_of(situation.facts.group) or 0, *(o.era for o in situation.facts.outcomes)]
    if situation.loaded.position is not None:
        eras.append(situation.loaded.position.era)
    return max(eras)


def _require_in_log(offset: int, facts: QueueFacts) -> None:
    if not facts.log_start <= offset <= facts.log_end:
        raise SettingsError(
            f"offset {offset} is outside the log of {facts.identity.topic}, which holds {facts.log_start} to "
            f"{facts.log_end} (exclusive)"
        )
