"""Committers with one rule taken out. The simulation is worth something if it notices each of them.

A rule that nobody misses when it is gone is either not needed or not tested.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from committerd import staged_files
from committerd.committer import committer, forming, intake, putting, starting, view
from committerd.committer.pipeline import Pipeline, Run, _Ahead, _expecting
from committerd.committer.publisher import Answers, Publisher
from committerd.committer.putting import Draft, Putter, Settlement
from committerd.committer.starting import Starter
from committerd.committer.view import View
from committerd.errors import OutcomeUnknown
from committerd.ports import Answer, Created, Queue, TopicIdentity
from committerd.prepare import Prepared
from committerd.rules import grouping, ledger, position, startup
from committerd.rules.answers import Settled
from committerd.rules.position import Position, advance
from committerd.rules.settle import Found, Race
from committerd.table import Table
from committerd.writing import put_in_turn

Mutate = Callable[[pytest.MonkeyPatch], None]


def believes_that_a_taken_number_is_foreign(patch: pytest.MonkeyPatch) -> None:
    peek = View.peek

    async def stripped(self: View) -> list[Found]:
        return [
            replace(one, settled=Settled(version=one.settled.version, uuid="", operation="", ours=False), position=None)
            for one in await peek(self)
        ]

    patch.setattr(View, "peek", stripped)


def takes_a_lost_answer_for_a_good_one(patch: pytest.MonkeyPatch) -> None:
    async def optimistic(
        table: Table, several: Sequence[Prepared], *, as_long_as: Callable[[], bool]
    ) -> Sequence[Answer]:
        answers = await put_in_turn(table, several, as_long_as=as_long_as)
        return [Created() if isinstance(answer, OutcomeUnknown) else answer for answer in answers]

    patch.setattr(putting, "put_in_turn", optimistic)


def leaves_transaction_files_to_who_died(patch: pytest.MonkeyPatch) -> None:
    async def left_out(table: Table, version: int) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(starting, "complete", left_out)


def answers_without_the_transaction_file(patch: pytest.MonkeyPatch) -> None:
    async def content(self: Putter, draft: Draft, view: View, found: Sequence[Found]) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(Putter, "_complete", content)


def believes_in_what_it_expected(patch: pytest.MonkeyPatch) -> None:
    """What was formed ahead is put, whatever was found at the number before."""

    async def stubborn(self: Pipeline, view: View) -> Run | None:
        ahead, self._ahead = self._ahead, None
        return ahead.drafts or None if ahead is not None else None

    async def put(self: Pipeline, run: Run, view: View) -> Settlement:
        self._ahead = None
        if run[-1].prepared.before is not None:
            self._ahead = _Ahead(_expecting(run, view), most=1)
            await self._form_ahead(self._ahead)
        return await self._putter.put(run, view)

    patch.setattr(Pipeline, "take", stubborn)
    patch.setattr(Pipeline, "put", put)


def leaves_transaction_files_of_a_run_to_its_last(patch: pytest.MonkeyPatch) -> None:
    async def left_out(table: Table, several: Sequence[Prepared]) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(putting, "write_transactions", left_out)


def acknowledges_before_it_publishes(patch: pytest.MonkeyPatch) -> None:
    publish = Publisher._publish

    async def early(self: Publisher, batch: Sequence[Answers]) -> None:
        self._due = next((a for a in reversed(batch) if a.acknowledge is not None), None)
        self._acknowledge_due.set()
        await publish(self, batch)

    patch.setattr(Publisher, "_publish", early)


def acknowledges_what_no_version_carries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(View, "acknowledgeable", lambda self: (self.position, self.base))


def carries_no_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(grouping.Group, "metadata", property(lambda self: {}))


def begins_where_the_latest_version_says(patch: pytest.MonkeyPatch) -> None:
    load = View.load

    async def latest_only(self: View) -> list[Found]:
        found = await load(self)
        self.position, self.marks = self.carried, dict(self.carried_marks)
        self.ever_carried = self.position is not None
        return found

    patch.setattr(View, "load", latest_only)


def reads_the_table_before_the_queue(patch: pytest.MonkeyPatch) -> None:
    read_facts = starting.read_facts

    class Loaded:
        def __init__(self, found: list[Found]) -> None:
            self.found = found

        async def load(self) -> list[Found]:
            return self.found

    async def table_first(queue: Queue, view: View) -> Any:
        loaded: Any = Loaded(await view.load())
        return await read_facts(queue, loaded)

    patch.setattr(starting, "read_facts", table_first)


def forgets_refusals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger.Ledger, "refused", lambda self, uuid: None)


def forgets_uuids(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger.Ledger, "committed_after", lambda self, uuid, read_version: None)


def forgets_uuids_of_its_own_group(patch: pytest.MonkeyPatch) -> None:
    dedupe = ledger.dedupe

    def alone(*arguments: Any, **named: Any) -> Any:
        return dedupe(*arguments, **(named | {"members": ()}))

    patch.setattr(forming, "dedupe", alone)


def does_not_look_at_app_versions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "_marked", lambda app, mark: None)


def lets_a_mark_speak_for_every_record_of_its_uuid(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(position.AppMark, "names", lambda self, uuid, *, era, offset: self.uuid == uuid)


def believes_an_old_listing(patch: pytest.MonkeyPatch) -> None:
    async def always(self: Putter, view: View) -> bool:
        return True

    patch.setattr(Putter, "_still_latest", always)


def counts_from_when_a_put_was_answered(patch: pytest.MonkeyPatch) -> None:
    learn_own = View.learn_own

    def late(self: View, file: Any, own: Found, *, read_at: float) -> None:
        learn_own(self, file, own, read_at=self.monotonic())

    patch.setattr(View, "learn_own", late)


def does_not_check_the_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(putting, "refuse_other_topic", lambda position, identity: None)
    patch.setattr(startup, "_refuse_other_topic", lambda position, identity: None)


def checks_the_topic_at_start_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(putting, "refuse_other_topic", lambda position, identity: None)


def keeps_the_first_answer_about_the_topic(patch: pytest.MonkeyPatch) -> None:
    """Whatever has arrived since."""

    def known(self: Pipeline, number: int) -> TopicIdentity | None:
        return self._known[1] if self._known is not None else None

    patch.setattr(Pipeline, "_known_of", known)


def does_not_answer_what_another_settled(patch: pytest.MonkeyPatch) -> None:
    read_back = Putter._read_back

    async def silent(self: Putter, draft: Draft, view: View, *, taken: bool) -> Settlement | None:
        settlement = await read_back(self, draft, view, taken=taken)
        if settlement is not None and settlement.race is Race.OTHER_COMMITTER:
            return replace(settlement, found=())
        return settlement

    patch.setattr(Putter, "_read_back", silent)


def publishes_nothing_at_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(starting, "_entries", lambda found, position, owed: ())


def publishes_at_start_only_what_is_in_order(patch: pytest.MonkeyPatch) -> None:
    publish_again = Starter._publish_again

    async def in_order(self: Starter, found: Sequence[Found], view: View, owed: int, generation: int) -> None:
        position = view.position
        assert position is not None
        view.position = replace(position, settled=())
        await publish_again(self, found, view, owed, generation)
        view.position = position

    patch.setattr(Starter, "_publish_again", in_order)


def keeps_what_was_fetched_before(patch: pytest.MonkeyPatch) -> None:
    def keep(self: intake.Intake) -> None:
        self.fetch_failure = None

    patch.setattr(intake.Intake, "clear", keep)


def lowers_the_position(patch: pytest.MonkeyPatch) -> None:
    """Believes whatever the newest version carries, a foreign Restore's too."""

    def newest(positions: Any) -> Any:
        return list(positions)[-1] if (positions := list(positions)) else None

    patch.setattr(view, "highest", newest)


def waits_at_what_was_settled_ahead(patch: pytest.MonkeyPatch) -> None:
    def hesitant(before: Position, pending: Sequence[int], settled: Any, *, fingerprints: Any) -> Position:
        after = advance(before, pending, settled, fingerprints=fingerprints)
        reached = next((o for o in range(before.next_offset, after.next_offset) if o not in pending), after.next_offset)
        passed = (*after.settled, *range(reached, after.next_offset))
        return replace(after, next_offset=reached, settled=tuple(sorted(passed)))

    patch.setattr(forming, "advance", hesitant)


def lets_refusals_wait_as_long_as_an_outage_took(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(committer, "_REFUSALS_WAIT_SECONDS_MAX", float("inf"))


def tries_an_acknowledgement_once(patch: pytest.MonkeyPatch) -> None:
    async def resigned(self: Publisher, due: Answers | None) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(Publisher, "_try_again_later", resigned)


def dies_of_a_group_of_errors(patch: pytest.MonkeyPatch) -> None:
    async def together(items: Iterable[Any], work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        async with anyio.create_task_group() as tasks:
            for item in items:
                tasks.start_soon(work, item)

    patch.setattr(staged_files, "for_each", together)


def tells_before_the_dead_letter(patch: pytest.MonkeyPatch) -> None:
    retrying = Publisher._retrying

    async def hasty(self: Publisher, call: str, send: Any) -> None:
        if call != "dead_letter":
            await retrying(self, call, send)

    patch.setattr(Publisher, "_retrying", hasty)
