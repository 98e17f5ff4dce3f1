"""Committers that lack one rule each. The simulation has to notice every one of them.

A rule that nothing misses is either not needed or not tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from committerd.committer import (
    assembling,
    clock,
    committer,
    containing,
    current_head,
    deciding,
    head,
    intake,
    loading,
    members,
    operate,
    putting,
    record_history,
    starting,
)
from committerd.committer.current_head import CurrentHead
from committerd.committer.head import Head
from committerd.committer.intake import Intake, Pending
from committerd.committer.loading import Loaded, Loading, News
from committerd.committer.members import FormedVersion
from committerd.committer.operate import Situation
from committerd.committer.pipeline import Pipeline, _Ahead
from committerd.committer.publisher import OutcomeBatch, Publisher
from committerd.committer.putting import FormedLanding, RaceResult
from committerd.committer.starting import Starter
from committerd.errors import PutUnknown
from committerd.kafka.held_back import HeldBack
from committerd.lance.conflicts import key_filter
from committerd.lance.conflicts.key_filter import KeyFilter, KeyUnion, appended_keys
from committerd.lance.operations import append, update
from committerd.lance.rows import group
from committerd.lance.rows.change import RowChange
from committerd.lance.rows.group import RowGroup
from committerd.queue import dedupe, grouping, ledger, position
from committerd.queue import start as startup
from committerd.queue.offsets import Offsets
from committerd.queue.outcomes import Settled
from committerd.queue.port import Fetched, Queue, Record, TopicIdentity
from committerd.queue.position import Position, advance
from committerd.queue.race import Race, VersionSummary
from committerd.queue.reach import Reach, lines_of
from committerd.queue.reservations import Reservations
from committerd.queue.rounds import Round
from committerd.queue.start import QueueFacts
from committerd.queue.turns import Turns
from committerd.stores.port import Created, Exists
from committerd.table import carrying, fetching, staged_reading
from committerd.table import prepare as preparing
from committerd.table.needs import FoundFile, StagedFacts
from committerd.table.places import Location
from committerd.table.prepare import Prepared
from committerd.table.versions import FootprintCache, Table, VersionState
from committerd.table.writing import put
from committerd_common.messages import Transaction
from tests.simulation.queue import FakeBroker

Mutate = Callable[[pytest.MonkeyPatch], None]


def believes_that_a_taken_number_is_foreign(patch: pytest.MonkeyPatch) -> None:
    peek = CurrentHead.peek

    async def stripped(self: CurrentHead) -> News:
        news = await peek(self)
        found = [
            replace(one, settled=Settled(version=one.settled.version, uuid="", operation="", ours=False), position=None)
            for one in news.found
        ]
        return news._replace(found=found)

    patch.setattr(CurrentHead, "peek", stripped)


def takes_a_lost_answer_for_a_good_one(patch: pytest.MonkeyPatch) -> None:
    async def optimistic(table: Table, prepared: Prepared) -> Created | Exists:
        try:
            return await put(table, prepared)
        except PutUnknown:
            return Created()

    patch.setattr(putting, "put", optimistic)


def leaves_transaction_files_to_who_died(patch: pytest.MonkeyPatch) -> None:
    async def left_out(table: Table, version: int) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(starting, "complete", left_out)


def answers_without_the_transaction_file(patch: pytest.MonkeyPatch) -> None:
    async def left_out(table: Table, version: int) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(putting, "complete", left_out)


def believes_in_what_it_expected(patch: pytest.MonkeyPatch) -> None:
    """Puts what was formed ahead, whatever version was found at the number before."""

    async def stubborn(self: Pipeline, head: Head) -> FormedVersion | None:
        ahead, self._ahead = self._ahead, None
        return ahead.formed if ahead is not None else None

    async def put(self: Pipeline, formed: FormedVersion, current: CurrentHead) -> RaceResult:
        self._ahead = None
        if formed.prepared.before is not None:
            self._ahead = _Ahead(formed, current.monotonic, current.monotonic())
            await self._form_ahead(self._ahead)
        return await self.putter.put(formed, current)

    patch.setattr(Pipeline, "take", stubborn)
    patch.setattr(Pipeline, "put", put)


def acknowledges_before_it_publishes(patch: pytest.MonkeyPatch) -> None:
    publish = Publisher._publish

    async def early(self: Publisher, batch: Sequence[OutcomeBatch]) -> None:
        self._unacknowledged = next((a for a in reversed(batch) if a.acknowledge is not None), None)
        self._acknowledge_due.set()
        await publish(self, batch)

    patch.setattr(Publisher, "_publish", early)


def acknowledges_past_a_slower_part(patch: pytest.MonkeyPatch) -> None:
    """The outcomes of another partition, which were given before, are still on their way."""

    async def publish_part(self: Publisher, part: Any) -> None:
        await self._publish(part.batches)
        part.published.set()
        self._parts.remove(part)
        self._let_acknowledge(part.batches)
        self._note_idle()

    patch.setattr(Publisher, "_publish_part", publish_part)


def acknowledges_what_no_version_carries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Head, "acknowledgeable", lambda self: (self.position, self.version))


def carries_no_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(members, "encode_metadata", lambda position, marks: {})


def begins_where_the_latest_version_says(patch: pytest.MonkeyPatch) -> None:
    load = loading.load

    async def latest_only(table: Table, how: Loading) -> Loaded:
        loaded = await load(table, how)
        return replace(loaded, position=loaded.carried, marks=loaded.carried_marks)

    patch.setattr(starting, "load", latest_only)


def reads_the_table_before_the_queue(patch: pytest.MonkeyPatch) -> None:
    read_facts, load = starting.read_facts, loading.load
    read: dict[int, Loaded] = {}

    async def known(table: Table, how: Loading) -> Loaded:
        return read.pop(id(table), None) or await load(table, how)

    async def table_first(queue: Queue, table: Table, how: Loading, *, republish_max: int = 0) -> Any:
        read[id(table)] = await load(table, how)
        return await read_facts(queue, table, how, republish_max=republish_max)

    patch.setattr(starting, "load", known)
    patch.setattr(starting, "read_facts", table_first)


def forgets_refusals(patch: pytest.MonkeyPatch) -> None:
    known = ledger.Ledger.known
    patch.setattr(ledger.Ledger, "known", lambda self, uuid: known(self, uuid)._replace(refusal=None))
    patch.setattr(record_history, "refusal_in", lambda settled, uuid: None)


def forgets_uuids(patch: pytest.MonkeyPatch) -> None:
    known = ledger.Ledger.known
    patch.setattr(ledger.Ledger, "known", lambda self, uuid: known(self, uuid)._replace(committed=None))
    patch.setattr(record_history, "names", lambda settled, uuid: False)


def looks_only_above_the_read_version(patch: pytest.MonkeyPatch) -> None:
    look_up = record_history.look_up

    def above(asked: Iterable[record_history.AskedUuid], known: ledger.Ledger, **named: Any) -> Any:
        found = yield from look_up(asked, known, **named)
        return {
            (uuid, after): one if (one.committed or 0) > after else one._replace(committed=None)
            for (uuid, after), one in found.items()
        }

    patch.setattr(deciding, "look_up", above)


def takes_what_was_dropped_for_new(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger.Ledger, "unknown_up_to", property(lambda self: max(self.unread_below - 1, 0)))


def does_not_wait_for_the_older_history(patch: pytest.MonkeyPatch) -> None:
    """So it can neither find what is unread nor rule it out."""
    patch.setattr(ledger.Ledger, "covers", lambda self, after: True)


def takes_what_is_unread_for_new(patch: pytest.MonkeyPatch) -> None:
    does_not_wait_for_the_older_history(patch)
    patch.setattr(ledger.Ledger, "unknown_up_to", property(lambda self: self.floor))


def forgets_the_older_history_once_it_is_read(patch: pytest.MonkeyPatch) -> None:
    with_older = ledger.Ledger.with_older

    def forgetful(self: ledger.Ledger, older: ledger.Ledger, *, unread_below: int) -> ledger.Ledger:
        return with_older(self, older if unread_below else ledger.Ledger(), unread_below=unread_below)

    patch.setattr(ledger.Ledger, "with_older", forgetful)


def begins_before_it_knows_what_it_owes(patch: pytest.MonkeyPatch) -> None:
    async def reached(self: loading._Downwards, position: Position) -> bool:
        await anyio.lowlevel.checkpoint()
        return True

    patch.setattr(loading._Downwards, "_reaches", reached)


def never_drops_what_it_remembers(patch: pytest.MonkeyPatch) -> None:
    """Drops neither uuids nor footprints."""
    patch.setattr(ledger.Ledger, "is_full", lambda self, entries: False)
    patch.setattr(FootprintCache, "_drop", lambda self, version: None)


def hashes_meet(patch: pytest.MonkeyPatch) -> None:
    """Not a missing rule: there are only four hashes, so everything has to be read again."""
    patch.setattr(ledger, "_key", lambda uuid: (len(uuid) + sum(uuid.encode())) % 4 << 16)


def believes_a_hash(patch: pytest.MonkeyPatch) -> None:
    hashes_meet(patch)
    patch.setattr(record_history, "names", lambda settled, uuid: True)


def forgets_uuids_of_its_own_group(patch: pytest.MonkeyPatch) -> None:
    decide = dedupe.dedupe

    def alone(*arguments: Any, **named: Any) -> Any:
        return decide(*arguments, **(named | {"members": ()}))

    patch.setattr(deciding, "dedupe", alone)


def does_not_look_at_app_versions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dedupe, "_marked", lambda app, mark: None)


def does_not_look_at_what_a_unit_must_follow(patch: pytest.MonkeyPatch) -> None:
    marked = dedupe._marked
    patch.setattr(dedupe, "_marked", lambda app, mark: marked(replace(app, after=None), mark))


def lets_a_mark_speak_for_every_record_of_its_uuid(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(position.AppMark, "names", lambda self, uuid, *, era, offset: self.uuid == uuid)


def believes_an_old_listing(patch: pytest.MonkeyPatch) -> None:
    async def always(self: FormedLanding) -> bool:
        return True

    patch.setattr(FormedLanding, "_still_latest", always)


def looks_above_a_head_of_long_ago(patch: pytest.MonkeyPatch) -> None:
    """Where listings have no order. The head is taken for the same, which it is if a tag has kept it."""
    patch.setattr(current_head, "RECENT_SECONDS_MAX", math.inf)
    does_not_look_at_what_it_builds_on(patch)


def counts_from_when_a_put_was_answered(patch: pytest.MonkeyPatch) -> None:
    """The base is not checked either, which would notice it as well."""
    follow = CurrentHead.follow

    def late(self: CurrentHead, head: Head, *, read_at: float) -> None:
        follow(self, head, read_at=self.monotonic())

    patch.setattr(CurrentHead, "follow", late)
    does_not_look_at_what_it_builds_on(patch)


def does_not_look_at_what_it_builds_on(patch: pytest.MonkeyPatch) -> None:
    async def believed(self: Table, version: int) -> VersionState:
        await anyio.lowlevel.checkpoint()
        return VersionState.SAME

    patch.setattr(Table, "standing", believed)


def looks_at_what_it_builds_on_before_it_puts_only(patch: pytest.MonkeyPatch) -> None:
    async def believed(self: FormedLanding) -> VersionState:
        await anyio.lowlevel.checkpoint()
        return VersionState.SAME

    patch.setattr(FormedLanding, "_standing", believed)


def answers_what_went_astray(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Starter, "_refuse_astray", lambda self, table: None)


def takes_whatever_comes(patch: pytest.MonkeyPatch) -> None:
    """Takes records whether or not the log before them is the one that was read."""

    async def content(self: intake.Intake, last: Any) -> str:
        await anyio.lowlevel.checkpoint()
        return ""

    patch.setattr(intake.Intake, "_rewritten", content)


def compares_only_when_the_epoch_changes(patch: pytest.MonkeyPatch) -> None:
    take = intake.Intake._take_what_follows

    async def trusting(self: intake.Intake, fetched: Fetched) -> None:
        await take(self, replace(fetched, unbroken=True))

    patch.setattr(intake.Intake, "_take_what_follows", trusting)


def compares_only_when_the_broker_was_away(patch: pytest.MonkeyPatch) -> None:
    take = intake.Intake._take_what_follows

    async def trusting(self: intake.Intake, fetched: Fetched) -> None:
        records = [replace(record, leader_epoch=-1) for record in fetched.records]
        await take(self, replace(fetched, records=records))

    patch.setattr(intake.Intake, "_take_what_follows", trusting)


def believes_its_own_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clock.QueueClock, "now", lambda self: self._wall_clock())


def does_not_ask_what_time_it_is(patch: pytest.MonkeyPatch) -> None:
    """Knows that it is later than each record, and no more."""

    async def silent(self: clock.QueueClock, queue: Queue) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(clock.QueueClock, "ask", silent)


def forgets_one_application_for_another(patch: pytest.MonkeyPatch) -> None:
    for module in (deciding, members):
        patch.setattr(module, "is_new_to", lambda marks, app_id: False)

    def newest(marks: position.Marks) -> dict[str, position.AppMark]:
        return dict(sorted(marks.items(), key=lambda item: item[1].used_ms)[-1:])

    patch.setattr(members, "kept_marks", newest)
    patch.setattr(head, "kept_marks", newest)


def believes_what_others_make_up(patch: pytest.MonkeyPatch) -> None:
    """Believes a foreign version with a higher position than any of ours."""
    then = Head.then

    def credulous(self: Head, found: Sequence[VersionSummary], *arguments: Any, **named: Any) -> Head:
        after = then(self, found, *arguments, **named)
        told = [one.position for one in found if one.position is not None]
        return replace(after, position=position.highest([after.position, *told]) or after.position)

    patch.setattr(Head, "then", credulous)


def does_not_check_the_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(putting, "refuse_other_topic", lambda position, identity: None)
    patch.setattr(startup, "refuse_other_topic", lambda position, identity: None)


def checks_the_topic_at_start_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(putting, "refuse_other_topic", lambda position, identity: None)


def keeps_the_first_answer_about_the_topic(patch: pytest.MonkeyPatch) -> None:
    """Keeps it whatever has arrived since."""

    def known(self: Pipeline, number: int) -> TopicIdentity | None:
        return self._known[1] if self._known is not None else None

    patch.setattr(Pipeline, "_known_of", known)


def does_not_answer_what_another_settled(patch: pytest.MonkeyPatch) -> None:
    read_back = FormedLanding.read_back

    async def silent(self: FormedLanding, *, taken: bool) -> RaceResult | None:
        result = await read_back(self, taken=taken)
        if result is not None and result.race is Race.OTHER_COMMITTER:
            return replace(result, found=())
        return result

    patch.setattr(FormedLanding, "read_back", silent)


def publishes_nothing_at_start(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: object) -> dict[int, Any]:
        await anyio.lowlevel.checkpoint()
        return {}

    patch.setattr(starting, "_entries", nothing)


def publishes_at_start_only_what_is_in_order(patch: pytest.MonkeyPatch) -> None:
    publish_again = Starter._publish_again

    async def in_order(self: Starter, current: CurrentHead, *arguments: Any) -> None:
        alone = replace(current.head, position=replace(current.head.position, settled=Offsets()))
        await publish_again(self, replace(current, head=alone), *arguments)

    patch.setattr(Starter, "_publish_again", in_order)


def keeps_what_was_fetched_before(patch: pytest.MonkeyPatch) -> None:
    def keep(self: intake.Intake) -> None:
        self.fetch_failure = None

    patch.setattr(intake.Intake, "clear", keep)


def lowers_the_position(patch: pytest.MonkeyPatch) -> None:
    """Believes the position of the newest version, even of a foreign Restore."""
    then = Head.then

    def credulous(self: Head, found: Sequence[VersionSummary], *arguments: Any, **named: Any) -> Head:
        after = then(self, found, *arguments, **named)
        return after if found[-1].position is None else replace(after, position=found[-1].position)

    patch.setattr(Head, "then", credulous)


def waits_at_what_was_settled_ahead(patch: pytest.MonkeyPatch) -> None:
    def hesitant(before: Position, pending: Sequence[int], settled: Any, **named: Any) -> Position:
        after = advance(before, pending, settled, **named)
        reached = next((o for o in range(before.next_offset, after.next_offset) if o not in pending), after.next_offset)
        passed = (*after.settled, *range(reached, after.next_offset))
        return replace(after, next_offset=reached, settled=Offsets.of(passed))

    patch.setattr(members, "advance", hesitant)


def lets_refusals_wait_as_long_as_an_outage_took(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(committer, "_REFUSALS_WAIT_SECONDS_MAX", float("inf"))


def tries_an_acknowledgement_once(patch: pytest.MonkeyPatch) -> None:
    async def resigned(self: Publisher, due: OutcomeBatch | None) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(Publisher, "_try_again_later", resigned)


def does_not_look_into_a_group_of_errors(patch: pytest.MonkeyPatch) -> None:
    """Blames the record for an outage that comes as an exception group."""

    async def together(items: Iterable[Any], work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        async with anyio.create_task_group() as tasks:
            for item in items:
                tasks.start_soon(work, item)

    patch.setattr(staged_reading, "for_each", together)
    patch.setattr(containing, "_members", lambda error: [error])


def tells_before_the_dead_letter(patch: pytest.MonkeyPatch) -> None:
    retrying = Publisher._retrying

    async def hasty(self: Publisher, call: str, send: Any) -> None:
        if call != "dead_letter":
            await retrying(self, call, send)

    patch.setattr(Publisher, "_retrying", hasty)


def blames_records_for_outages(patch: pytest.MonkeyPatch) -> None:
    for module in (containing, deciding):
        patch.setattr(module, "require_contained", lambda error: None)


def puts_what_nothing_can_follow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(preparing, "require_next", lambda *arguments, **named: None)


def believes_for_ever_that_a_file_is_there(patch: pytest.MonkeyPatch) -> None:
    """A check for one record counts for all later records."""
    known: dict[Location, FoundFile] = {}
    read = staged_reading.read_staged

    async def read_once(*arguments: Any, **named: Any) -> list[StagedFacts]:
        facts = await read(*arguments, **named)
        for one in facts:
            known.update((at, found) for at, found in one.files.items() if isinstance(found, FoundFile))
        return [replace(one, files={at: known.get(at, found) for at, found in one.files.items()}) for one in facts]

    patch.setattr(fetching, "read_staged", read_once)


def does_not_look_for_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding.DecideOptions, "verifies", lambda self, age_ms: False)


def does_not_judge_members_against_each_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowGroup, "conflict", lambda self, change: None)


def compares_only_the_rows_of_members(patch: pytest.MonkeyPatch) -> None:
    """Two members of a version may insert the same key."""
    patch.setattr(KeyUnion, "may_have_one_of", lambda self, keys: False)


def records_the_keys_of_the_first_member(patch: pytest.MonkeyPatch) -> None:
    add = KeyUnion.add

    def only_once(self: KeyUnion, keys: KeyFilter) -> None:
        if not self._exact:
            add(self, keys)

    patch.setattr(KeyUnion, "add", only_once)


def passes_every_append_that_names_keys(patch: pytest.MonkeyPatch) -> None:
    def none_of_them(transaction: Transaction) -> KeyFilter | None:
        keys = appended_keys(transaction)
        return keys and replace(keys, exact=frozenset())

    patch.setattr(append, "appended_keys", none_of_them)


def forgets_the_keys_of_appends_that_share_a_version(patch: pytest.MonkeyPatch) -> None:
    """The version names those of the last Append."""
    together = grouping._keys_together
    patch.setattr(grouping, "_keys_together", lambda transactions: together(transactions[-1:]))


def takes_every_update_for_one_that_keeps_the_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(update, "_changed_fields", lambda transaction: frozenset())


def notes_of_several_updates_what_the_last_one_changes(patch: pytest.MonkeyPatch) -> None:
    together = key_filter.changes_together
    patch.setattr(group, "changes_together", lambda updates: together(list(updates)[-1:]))


def writes_the_rows_of_the_last_member(patch: pytest.MonkeyPatch) -> None:
    """A fragment of which several members delete rows gets the deletion file of the last one."""
    add = RowGroup.add

    def overwrites(self: RowGroup, change: RowChange) -> None:
        for fragment_id in change.touched:
            self._touched.pop(fragment_id, None)
        add(self, change)

    patch.setattr(RowGroup, "add", overwrites)


def lets_a_refused_uuid_be_a_ticket_for_any_number_of_records(patch: pytest.MonkeyPatch) -> None:
    settled = Reservations.settled

    def for_ever(self: Reservations, retries: Collection[str], *arguments: Any, **named: Any) -> Reservations:
        after = settled(self, retries, *arguments, **named)
        return replace(after, tickets={**self.tickets, **after.tickets})

    patch.setattr(Reservations, "settled", for_ever)


def lets_anybody_use_a_ticket(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reservations, "has_ticket", lambda self, refused, producer: refused in self.tickets)


def lets_units_of_one_application_overtake_each_other(patch: pytest.MonkeyPatch) -> None:
    takes = Round.takes
    patch.setattr(Round, "takes", lambda self, part, app_id="", producer="": takes(self, part, producer=producer))


def lets_units_overtake_one_that_waits_for_what_is_unread(patch: pytest.MonkeyPatch) -> None:
    leaves = Round.leaves
    patch.setattr(Round, "leaves", lambda self, app_id="", producer="": leaves(self))


FEW_AHEAD = 4


def lets_units_overtake_in_turn(patch: pytest.MonkeyPatch) -> None:
    """Another producer of the same application has a turn of its own."""
    add = Turns.add

    def alone(self: Turns[Any], one: Any) -> None:
        self._apps.pop(one.app_id, None)
        add(self, one)

    patch.setattr(Turns, "add", alone)
    patch.setattr(Turns, "_left_by", lambda self, one: None)


def takes_turns_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    """Takes from all producers, however many records are settled ahead then."""
    patch.setattr(assembling, "count_beyond", lambda taken, waiting: 0)
    patch.setattr(deciding, "count_beyond", lambda taken, waiting: 0)
    patch.setattr(position, "RANGES_MAX", FEW_AHEAD)


def takes_what_was_settled_ahead_again(patch: pytest.MonkeyPatch) -> None:
    """Another committer has settled it in turn."""
    chosen = Turns.chosen

    def all_of_them(self: Turns[Any], most: int, **given: Any) -> Sequence[Any]:
        return chosen(self, most, **given | {"passes": lambda offset: False})

    patch.setattr(Turns, "chosen", all_of_them)


def passes_what_is_skipped(patch: pytest.MonkeyPatch) -> None:
    """Takes all that is held for all that was staged."""
    first = Intake.first

    def of_all_that_is_held(self: Intake, count: int, *, behind: Position) -> list[Pending]:
        reach = self._reach
        skipped, reach._skipped = reach._skipped, {}
        try:
            return first(self, count, behind=behind)
        finally:
            reach._skipped = skipped

    patch.setattr(Intake, "first", of_all_that_is_held)


def skips_for_good(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reach, "due", lambda self: None)


def holds_units_behind_a_skipped_one(patch: pytest.MonkeyPatch) -> None:
    """What follows is held as soon as there is room, although what was skipped was not read again yet."""
    patch.setattr(Reach, "_may_hold", lambda self, record, closed: self._has_room(record.lines))


def holds_units_of_another_producer_behind_a_skipped_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intake, "lines_of", lambda producer, app_id: lines_of(producer, b"" if producer else app_id))


def stops_at_a_damaged_old_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loading, "_read_old", loading._read)


def proposes_what_follows_the_highest_answer(patch: pytest.MonkeyPatch) -> None:
    """Passes over records that one settled ahead has overtaken."""
    with_outcomes = operate.with_outcomes

    def overtaken(situation: Situation) -> Position | None:
        known = with_outcomes(situation)
        if known is None or not known.settled:
            return known
        return replace(known, next_offset=known.settled.bounds[-1], settled=Offsets())

    patch.setattr(operate, "with_outcomes", overtaken)


def proposes_the_end_of_a_log_that_lost_its_own(patch: pytest.MonkeyPatch) -> None:
    """Passes over records that have the offsets of lost ones."""

    async def everything(queue: Queue, loaded: Loaded, facts: QueueFacts) -> Position | None:
        position = loaded.position
        return None if position is None else replace(position, last_offset=facts.log_end - 1)

    patch.setattr(operate, "_proven", everything)


def proves_only_what_is_below_the_next_offset(patch: pytest.MonkeyPatch) -> None:
    """Takes an unchanged record below the next offset as proof of what was settled ahead of it."""

    def in_order(before: Position, pending: Sequence[int], settled: Iterable[int], *, last: Record | None) -> Position:
        after = advance(before, pending, settled, last=last)
        return after if after.last_offset < after.next_offset else after.proven_by(before)

    patch.setattr(members, "advance", in_order)


def does_not_know_of_pauses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(carrying, "decode_pause", lambda metadata, branch="": None)


def forgets_the_pause_where_another_writer_drops_it(patch: pytest.MonkeyPatch) -> None:
    then = Head.then

    def forgetful(self: Head, versions: Sequence[VersionSummary], *given: Any, **named: Any) -> Head:
        after = then(self, versions, *given, **named)
        return replace(after, pause=versions[-1].pause)

    patch.setattr(Head, "then", forgetful)


def reads_behind_an_open_transaction(patch: pytest.MonkeyPatch) -> None:
    """Its consumer and its readers take what is not committed to Kafka yet."""
    patch.setattr(FakeBroker, "readable_end", property(lambda self: self.log_end))


def counts_records_instead_of_offsets(patch: pytest.MonkeyPatch) -> None:
    """Kafka transactions leave offsets without a record."""

    def counted(before: Position, pending: Sequence[int], settled: Iterable[int], **named: Any) -> Position:
        after = advance(before, pending, settled, **named)
        passed = sum(before.next_offset <= offset < after.next_offset for offset in (*pending, *before.settled))
        return replace(after, next_offset=before.next_offset + passed)

    patch.setattr(members, "advance", counted)


def keeps_what_was_held_back_before(patch: pytest.MonkeyPatch) -> None:
    look = HeldBack.look

    async def once(self: HeldBack) -> None:
        if self.current() is None:
            await look(self)

    patch.setattr(HeldBack, "look", once)


def dates_what_is_held_back_by_its_last_record(patch: pytest.MonkeyPatch) -> None:
    """The age does not grow while records arrive."""
    look = HeldBack.look

    async def newest(self: HeldBack) -> None:
        self.forget()
        await look(self)
        if self._first is not None:
            last = await self._log.first_held_back(await self._log.end() - 1)
            self._first = (self._first[0], last.timestamp_ms if last else 0)

    patch.setattr(HeldBack, "look", newest)
