"""What an operator may do to a position by hand: adopt or rewind it, release an application.

Each is one version with the reason in it. A running committer meets it like any version of another committer and starts
again; one that refuses to run finds it when it looks again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from committerd.committer.starting import read_facts
from committerd.committer.view import StartAgain, View
from committerd.errors import CommitterError, OutcomeUnknown, RefusedToRun, SettingsError
from committerd.ports import Created, Queue
from committerd.prepare import Judged, World, build_version
from committerd.rules.answers import Settled
from committerd.rules.grouping import position_only
from committerd.rules.position import AppMark, Position, encode_metadata, kept_marks, start_of
from committerd.rules.settle import Found, Race, race
from committerd.rules.startup import QueueFacts, refuse_rewritten_log, starting_position
from committerd.writing import complete, put, write_files

_ATTEMPTS = 20
"""Versions that other writers may put in between before we give up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Table and queue as they stand, and whether a committer would run on them."""

    view: View
    carried: Position | None
    """The highest position that any readable version carries."""
    facts: QueueFacts
    refusal: RefusedToRun | None
    """Why a committer refuses to run; None = it runs."""


async def look(queue: Queue, new_view: Callable[[], View]) -> Situation:
    """Do what Start does, without answering anything. Raises `CommitterError` when both change too fast to be seen."""
    view = new_view()
    try:
        facts, _ = await read_facts(queue, view)
    except StartAgain as reason:
        raise CommitterError(f"{reason}: look again", code="contended") from reason
    refusal = None
    try:
        position = starting_position(view.position, facts, table_exists=view.base > 0)
        if facts.log_start <= position.last_offset:
            refuse_rewritten_log(position, await queue.read(position.last_offset, position.last_offset + 1))
    except RefusedToRun as error:
        refusal = error
    return Situation(view=view, carried=view.position, facts=facts, refusal=refusal)


def adopted(situation: Situation, offset: int | None) -> Position:
    """The position that takes on the topic as it is now. `offset` None = where the cause says.

    Raises `SettingsError` for an offset outside the log.
    """
    facts = situation.facts
    answered = [*facts.answered(0), (facts.group_offset or 0) - 1]
    proposals = {
        "position_beyond_end": facts.log_end,
        "position_below_log_start": facts.log_start,
        "topic_id": facts.log_start,
        "log_rewritten": facts.log_start,
        "position_went_back": min(max(answered) + 1, facts.log_end),
        "keys_missing": min(max(answered) + 1, facts.log_end),
    }
    if offset is None:
        code = situation.refusal.code if situation.refusal else ""
        if code not in proposals:
            raise SettingsError(
                "a committer runs on this table and topic as they are: say with --offset from where to go on instead"
            )
        offset = proposals[code]
    _require_in_log(offset, facts)
    return replace(start_of(facts.identity, offset), era=_next_era(situation))


def rewound(situation: Situation, offset: int) -> Position:
    """The position put back to `offset`: records from there on are judged again.

    Raises `SettingsError` for an offset outside the log or not below the position.
    """
    carried, facts = situation.carried, situation.facts
    reached = carried.next_offset if carried is not None else 0
    told = max([facts.group_offset or 0, reached, *(o + 1 for o in facts.answered(0))])
    if offset >= told:
        raise SettingsError(f"offset {offset} is not behind what was answered, {told}: `position adopt` goes forward")
    _require_in_log(offset, facts)
    return replace(start_of(facts.identity, offset), era=_next_era(situation))


def released(marks: dict[str, AppMark], app_id: str) -> dict[str, AppMark]:
    """The marks after the next run of `app_id` may start anew. Raises `SettingsError` when there is no such mark."""
    mark = marks.get(app_id)
    if mark is None or mark.released:
        known = ", ".join(sorted(a for a, m in marks.items() if not m.released)) or "none"
        raise SettingsError(f"the table has no mark of application {app_id!r}; it has: {known}")
    used_ms = max(one.used_ms for one in marks.values())  # marks age by each other, and not by this machine's clock
    return marks | {app_id: replace(mark, run="", version=-1, life=mark.life + 1, used_ms=used_ms)}


async def write(
    view: View,
    world: World,
    *,
    new_position: Position | None,
    change_marks: Callable[[dict[str, AppMark]], dict[str, AppMark]],
    reason: str,
    marks_max: int,
) -> int:
    """Commit one version with this position (None = the one that the table has) and these marks; returns its number.

    Raises `CommitterError` when other writers keep taking the number, or when a committer moves the position meanwhile.
    """
    for _ in range(_ATTEMPTS):
        position = new_position or view.position
        if position is None:
            raise SettingsError("no version of the table carries a position: no committer has committed to it yet")
        marks = kept_marks(change_marks(dict(view.marks)), most=marks_max)
        transaction = position_only(position, marks, read_version=view.base, uuid=str(world.new_uuid()), reason=reason)
        prepared = await build_version(
            view.table,
            view.latest,
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
        if view.newest_ours:
            await complete(view.table, view.newest_ours)
        await write_files(view.table, prepared)
        try:
            if isinstance(await put(view.table, prepared), Created):
                return prepared.version
        except OutcomeUnknown:
            pass
        found = await view.peek()
        if found and race(own, found) is Race.OURS:
            return prepared.version
        if new_position is not None and any(one.settled.ours for one in found):
            raise CommitterError(
                "a committer has committed meanwhile: look again with `committerd position show`", code="contended"
            )
        if found:
            view.learn(found)
    raise CommitterError(
        f"{_ATTEMPTS} other versions were committed meanwhile: stop the other writers for a moment, and try again",
        code="contended",
    )


def _next_era(situation: Situation) -> int:
    """Above every era that the table or an answer has named."""
    eras = [situation.facts.group_era or 0, *(o.era for o in situation.facts.outcomes)]
    if situation.carried is not None:
        eras.append(situation.carried.era)
    return max(eras) + 1


def _require_in_log(offset: int, facts: QueueFacts) -> None:
    if not facts.log_start <= offset <= facts.log_end:
        raise SettingsError(
            f"offset {offset} is outside the log of {facts.identity.topic}, which holds {facts.log_start} to "
            f"{facts.log_end} (exclusive)"
        )
