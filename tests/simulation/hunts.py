"""The runs that have to notice each mutation: all scenarios, or one that is made for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel
import pytest

from committerd.lance.format.bounds import FRAGMENT_ID_MAX
from tests.simulation import mutations as m
from tests.simulation.chaos import HOUR, Chaos
from tests.simulation.faults import Rates
from tests.simulation.mutations import Mutate
from tests.simulation.scenarios import ROUGH, SMOOTH, scenario_of
from tests.simulation.world import Report, Scenario, World, simulate


def _nothing(world: World) -> None:
    """The producers stage random records."""


def _garbage(world: World) -> None:
    producers = world.producers
    producers.plan = [producers.wrong() for _ in range(30)]


def _good_ones(world: World) -> None:
    producers = world.producers
    producers.plan = [producers.plain() for _ in range(200)]


def _with_deadlines(world: World) -> None:
    producers = world.producers
    producers.plan = [producers.in_time() if number % 2 else producers.plain() for number in range(60)]


def _units_of_two(world: World) -> None:
    """Units of two applications in turn; the last one of each is staged once more with other bytes."""
    producers = world.producers
    units = [(app_id, version) for version in range(1, 9) for app_id in ("a", "b")]
    producers.plan = [producers.unit(*unit) for unit in [*units, ("a", 8), ("b", 8), ("a", 8)]]


def _units_of_several(world: World) -> None:
    """Units of one application between many other records."""
    producers = world.producers
    units = [producers.unit("a", version) for version in range(1, 13)]
    producers.plan = [one for unit in units for one in (unit, *(producers.plain() for _ in range(4)))]


def _refused_and_repeated(world: World) -> None:
    """Many records are refused, and named by several re-executions, some of them of another producer."""
    world.auditor.only_retries_pass = True
    producers = world.producers
    producers.only_rows, producers.will_retry, producers.upserts = True, 0.0, 1.0
    producers.repeats = 0.4


def _one_unit_twice(world: World) -> None:
    """The same bytes with the same app-version."""
    producers = world.producers
    unit = producers.unit("a", 1)
    producers.plan = [unit, unit, producers.plain()]


def _create_behind_others(world: World) -> None:
    """The create goes ahead of two waiting records, and the process that created the table dies before it publishes
    anything.
    """
    producers = world.producers
    producers.plan = [producers.plain(), producers.plain(), producers.create(), producers.plain()]
    for process in world.processes:
        process.crash_after_put = True


def _ids_run_out(world: World) -> None:
    """A table with two fragment ids left, which an Overwrite would take."""

    async def nearly_full() -> None:
        world.foreign.put_table(1, max_fragment_id=FRAGMENT_ID_MAX - 2)
        await anyio.lowlevel.checkpoint()

    world.foreign.create = nearly_full  # type: ignore[method-assign]
    producers = world.producers
    producers.plan = [producers.overwrite(1), producers.plain(), producers.plain()]


def _one_file_of_two_records(world: World) -> None:
    """The first record can't be committed, and when the second one is judged, the file that existed for the first may
    be gone.
    """
    producers = world.producers
    pairs = [producers.sharing_a_file() for _ in range(15)]
    producers.plan = [first for first, _ in pairs] + [second for _, second in pairs]


def _rows(world: World) -> None:
    """After some fragments, Deletes and upserts of their rows, Appends, and units of work among them."""
    producers = world.producers
    producers.plan = [producers.plain() for _ in range(6)]
    producers.only_rows = True


def _updates(world: World) -> None:
    """The same, but mostly Updates, of which half name no keys."""
    _rows(world)
    world.producers.upserts = 0.9
    world.producers.by_key = world.producers.without_keys = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunt:
    """The runs that have to notice that a rule is missing."""

    scenario: Scenario | None = None
    """None = the seed's own scenario."""
    prepare: Callable[[World], None] = _nothing

    def run(self, seed: int) -> Report:
        return simulate(seed, self.scenario or scenario_of(seed), prepare=self.prepare)


ANYWHERE = Hunt()
BOTH_COMMIT = Hunt(
    scenario=Scenario(
        records=60,
        seconds=40.0,
        rates=Rates(latency=0.02),
        events={Chaos.fence_and_crash: 1.0},
        event_seconds=5.0,
    )
)
OFTEN_HANDED_OVER = Hunt(
    scenario=Scenario(
        records=60,
        seconds=40.0,
        rates=Rates(latency=0.05, refused=0.02),
        events={Chaos.fence: 1.0, Chaos.hand_over: 1.0},
        event_seconds=1.0,
        settings={"group_records_max": 1},
    )
)
SLEEPY = Hunt(
    scenario=Scenario(
        records=20,
        seconds=3 * HOUR,
        rates=Rates(latency=0.01),
        events={Chaos.oversleep: 1.0},
        event_seconds=HOUR / 4,
        settings={"group_records_max": 1},
        recheck_seconds=60.0,
    )
)
FORGETFUL = Hunt(
    scenario=Scenario(
        records=20,
        seconds=3 * HOUR,
        rates=Rates(latency=0.01),
        events={Chaos.forget: 1.0},
        event_seconds=HOUR / 2,
        recheck_seconds=60.0,
    ),
    prepare=_one_unit_twice,
)
LITTLE_MEMORY = Hunt(
    scenario=Scenario(
        records=150,
        seconds=60.0,
        rates=Rates(latency=0.02),
        events={Chaos.crash: 1.0, Chaos.fence: 1.0},
        event_seconds=5.0,
        foreign_seconds=5.0,
        settings={"group_records_max": 3},
        ledger_bytes=400,
        footprint_bytes=1,
    )
)
NO_MEMORY = Hunt(
    scenario=Scenario(
        records=400,
        seconds=60.0,
        rates=Rates(latency=0.005),
        settings={"group_records_max": 1},
        ledger_bytes=400,
        footprint_bytes=1,
    )
)
OFTEN_DEAD = Hunt(
    scenario=Scenario(
        records=60,
        seconds=40.0,
        rates=Rates(latency=0.02),
        events={Chaos.crash: 1.0},
        event_seconds=1.0,
        settings={"group_records_max": 1},
    )
)
_UNREAD = Scenario(
    records=80,
    seconds=60.0,
    rates=Rates(latency=0.05, lost=0.01, slow=0.02, slow_seconds=5.0),
    events={Chaos.crash: 2.0, Chaos.hand_over: 1.0, Chaos.fence: 1.0},
    event_seconds=4.0,
    foreign_seconds=3.0,
    settings={"group_records_max": 2},
    history_batch=1,
)
UNREAD = Hunt(scenario=_UNREAD)
UNREAD_IN_A_ROUND = Hunt(scenario=replace(_UNREAD, settings={"group_records_max": 8}))
"""As `UNREAD`, with rounds of several records, of which some wait and others go on."""
_IN_TURN = Scenario(
    records=80,
    seconds=10.0,
    rates=Rates(latency=0.02),
    events={Chaos.crash: 1.0, Chaos.fence: 2.0, Chaos.fence_and_crash: 1.0},
    event_seconds=4.0,
    settings={"group_records_max": 4},
    producers=3,
)
IN_TURN = Hunt(scenario=_IN_TURN, prepare=_units_of_several)
"""More records wait than a version holds: those of a few producers, two of which stage units of one application."""
BEYOND = Hunt(scenario=replace(_IN_TURN, records=100, room=5), prepare=_units_of_several)
"""As `IN_TURN`, and more records are staged than a committer holds."""
OTHER_TOPICS = Hunt(
    scenario=Scenario(
        records=40,
        seconds=30.0,
        rates=Rates(latency=0.01, slow=0.02, slow_seconds=10.0),
        events={Chaos.recreate_topic: 1.0},
        event_seconds=6.0,
    )
)
_ROLLED_BACK = Scenario(
    records=80,
    seconds=120.0,
    rates=Rates(latency=0.02),
    events={Chaos.roll_back_log: 1.0},
    event_seconds=40.0,
    settings={"group_records_max": 3},
    room=5,
)
ROLLED_BACK = Hunt(scenario=_ROLLED_BACK, prepare=_good_ones)
ROLLED_BACK_BEYOND = Hunt(
    scenario=replace(_ROLLED_BACK, producers=3, seconds=60.0, event_seconds=10.0, room=12), prepare=_good_ones
)
"""As `ROLLED_BACK`, and records are settled ahead of waiting ones when the log loses its end, again and again."""
WRONG_CLOCKS = Hunt(
    scenario=Scenario(
        records=60,
        seconds=60.0,
        rates=Rates(latency=0.01),
        events={Chaos.clock_jump: 3.0, Chaos.hand_over: 1.0, Chaos.crash: 1.0},
        event_seconds=3.0,
    ),
    prepare=_with_deadlines,
)
FEW_MARKS = Hunt(
    scenario=Scenario(
        records=60,
        seconds=60.0,
        rates=Rates(latency=0.01),
        settings={"app_marks_max": 1, "group_records_max": 1},
    ),
    prepare=_units_of_two,
)
MADE_UP = Hunt(scenario=Scenario(records=60, seconds=60.0, rates=Rates(latency=0.01), foreign_seconds=0.1))
SWAPPED = Hunt(
    scenario=Scenario(
        records=60,
        seconds=60.0,
        rates=Rates(latency=0.01),
        events={Chaos.swap_table: 1.0},
        event_seconds=20.0,
        settings={"group_records_max": 1},
    )
)
SWAPPED_IN_BAD_WEATHER = Hunt(
    scenario=Scenario(
        records=60,
        seconds=60.0,
        rates=ROUGH,
        events={Chaos.swap_table: 1.0},
        event_seconds=20.0,
        settings={"group_records_max": 1},
    )
)
FLAKY_FILES = Hunt(
    scenario=Scenario(
        records=40,
        seconds=30.0,
        rates=SMOOTH,
        events={Chaos.file_comes_or_goes: 1.0},
        event_seconds=1.0,
        settings={"verify_files": "always"},
    )
)
SHARED_FILES = Hunt(
    scenario=Scenario(
        records=30,
        seconds=60.0,
        rates=SMOOTH,
        events={Chaos.file_comes_or_goes: 1.0},
        event_seconds=1.0,
    ),
    prepare=_one_file_of_two_records,
)
DAMAGED = Hunt(
    scenario=Scenario(
        records=60,
        seconds=60.0,
        rates=Rates(latency=0.01),
        events={Chaos.damage_old_version: 1.0, Chaos.crash: 1.0, Chaos.fence: 1.0},
        event_seconds=3.0,
        foreign_seconds=2.0,
    )
)
LAST_IDS = Hunt(scenario=Scenario(records=3, seconds=2.0, rates=SMOOTH), prepare=_ids_run_out)
OFTEN_REFUSED = Hunt(scenario=Scenario(records=10, seconds=60.0, rates=Rates(refused=0.2, latency=0.01)))
OFTEN_DOWN = Hunt(
    scenario=Scenario(records=30, seconds=200.0, rates=SMOOTH, events={Chaos.store_outage: 1.0}, event_seconds=10.0),
    prepare=_garbage,
)
CREATED_AND_DEAD = Hunt(
    scenario=Scenario(records=4, seconds=2.0, table="made_by_queue", rates=SMOOTH), prepare=_create_behind_others
)
PAUSED = Hunt(
    scenario=Scenario(
        records=60,
        seconds=120.0,
        rates=Rates(latency=0.01),
        events={Chaos.pause: 3.0, Chaos.crash: 1.0, Chaos.hand_over: 1.0},
        event_seconds=4.0,
        foreign_seconds=3.0,
    )
)
LEFT_OPEN = Hunt(
    scenario=Scenario(
        records=60,
        seconds=300.0,
        rates=Rates(latency=0.02),
        events={Chaos.leave_transaction_open: 4.0, Chaos.crash: 1.0, Chaos.hand_over: 1.0},
        event_seconds=30.0,
    )
)

ROUNDS = Hunt(
    scenario=Scenario(
        records=80,
        seconds=20.0,
        rates=Rates(latency=0.1, lost=0.005),
        events={Chaos.crash: 1.0, Chaos.hand_over: 1.0},
        event_seconds=6.0,
        foreign_seconds=4.0,
        settings={"verify_files": "always"},
    ),
    prepare=_rows,
)
UPDATES = Hunt(scenario=ROUNDS.scenario, prepare=_updates)
TICKETS = Hunt(
    scenario=Scenario(
        records=200,
        seconds=20.0,
        rates=Rates(latency=0.1),
        settings={"coalesce": "none", "hold_seconds_max": 0.0},
    ),
    prepare=_refused_and_repeated,
)

HUNTS: Mapping[Mutate, Hunt] = {
    m.lets_a_refused_uuid_be_a_ticket_for_any_number_of_records: TICKETS,
    m.lets_anybody_use_a_ticket: TICKETS,
    m.does_not_judge_members_against_each_other: ROUNDS,
    m.compares_only_the_rows_of_members: ROUNDS,
    m.records_the_keys_of_the_first_member: ROUNDS,
    m.writes_the_rows_of_the_last_member: ROUNDS,
    m.passes_every_append_that_names_keys: ROUNDS,
    m.forgets_the_keys_of_appends_that_share_a_version: ROUNDS,
    m.takes_every_update_for_one_that_keeps_the_keys: UPDATES,
    m.notes_of_several_updates_what_the_last_one_changes: UPDATES,
    m.lets_units_of_one_application_overtake_each_other: ROUNDS,
    m.believes_that_a_taken_number_is_foreign: ANYWHERE,
    m.takes_a_lost_answer_for_a_good_one: ANYWHERE,
    m.leaves_transaction_files_to_who_died: OFTEN_DEAD,
    m.answers_without_the_transaction_file: BOTH_COMMIT,
    m.believes_in_what_it_expected: DAMAGED,
    m.acknowledges_before_it_publishes: ANYWHERE,
    m.acknowledges_past_a_slower_part: ANYWHERE,
    m.acknowledges_what_no_version_carries: ANYWHERE,
    m.carries_no_position: ANYWHERE,
    m.begins_where_the_latest_version_says: ANYWHERE,
    m.reads_the_table_before_the_queue: OFTEN_HANDED_OVER,
    m.forgets_refusals: FLAKY_FILES,
    m.forgets_uuids: ANYWHERE,
    m.looks_only_above_the_read_version: ANYWHERE,
    m.takes_what_was_dropped_for_new: LITTLE_MEMORY,
    m.does_not_wait_for_the_older_history: UNREAD,
    m.takes_what_is_unread_for_new: UNREAD,
    m.forgets_the_older_history_once_it_is_read: UNREAD,
    m.lets_units_overtake_one_that_waits_for_what_is_unread: UNREAD_IN_A_ROUND,
    m.begins_before_it_knows_what_it_owes: UNREAD,
    m.never_drops_what_it_remembers: NO_MEMORY,
    m.believes_a_hash: OFTEN_DEAD,
    m.forgets_uuids_of_its_own_group: ANYWHERE,
    m.does_not_look_at_app_versions: ANYWHERE,
    m.does_not_look_at_what_a_unit_must_follow: ANYWHERE,
    m.lets_a_mark_speak_for_every_record_of_its_uuid: FORGETFUL,
    m.believes_an_old_listing: SLEEPY,
    m.looks_above_a_head_of_long_ago: SLEEPY,
    m.counts_from_when_a_put_was_answered: SLEEPY,
    m.does_not_look_at_what_it_builds_on: SWAPPED,
    m.looks_at_what_it_builds_on_before_it_puts_only: SWAPPED,
    m.answers_what_went_astray: SWAPPED,
    m.proposes_what_follows_the_highest_answer: SWAPPED_IN_BAD_WEATHER,
    m.proposes_the_end_of_a_log_that_lost_its_own: ROLLED_BACK,
    m.takes_whatever_comes: ROLLED_BACK,
    m.compares_only_when_the_epoch_changes: ROLLED_BACK,
    m.compares_only_when_the_broker_was_away: ROLLED_BACK,
    m.believes_what_others_make_up: MADE_UP,
    m.believes_its_own_clock: WRONG_CLOCKS,
    m.does_not_ask_what_time_it_is: WRONG_CLOCKS,
    m.forgets_one_application_for_another: FEW_MARKS,
    m.does_not_check_the_topic: OTHER_TOPICS,
    m.checks_the_topic_at_start_only: OTHER_TOPICS,
    m.keeps_the_first_answer_about_the_topic: OTHER_TOPICS,
    m.does_not_answer_what_another_settled: BOTH_COMMIT,
    m.publishes_nothing_at_start: ANYWHERE,
    m.publishes_at_start_only_what_is_in_order: CREATED_AND_DEAD,
    m.keeps_what_was_fetched_before: ANYWHERE,
    m.lowers_the_position: ANYWHERE,
    m.waits_at_what_was_settled_ahead: ANYWHERE,
    m.lets_refusals_wait_as_long_as_an_outage_took: OFTEN_DOWN,
    m.tries_an_acknowledgement_once: OFTEN_REFUSED,
    m.does_not_look_into_a_group_of_errors: ANYWHERE,
    m.tells_before_the_dead_letter: ANYWHERE,
    m.blames_records_for_outages: ANYWHERE,
    m.lets_units_overtake_in_turn: IN_TURN,
    m.takes_turns_without_a_bound: IN_TURN,
    m.takes_what_was_settled_ahead_again: IN_TURN,
    m.proves_only_what_is_below_the_next_offset: ROLLED_BACK_BEYOND,
    m.passes_what_is_skipped: BEYOND,
    m.skips_for_good: BEYOND,
    m.holds_units_behind_a_skipped_one: BEYOND,
    m.holds_units_of_another_producer_behind_a_skipped_one: BEYOND,
    m.stops_at_a_damaged_old_version: DAMAGED,
    m.puts_what_nothing_can_follow: LAST_IDS,
    m.believes_for_ever_that_a_file_is_there: SHARED_FILES,
    m.does_not_look_for_files: FLAKY_FILES,
    m.does_not_know_of_pauses: PAUSED,
    m.forgets_the_pause_where_another_writer_drops_it: PAUSED,
    m.reads_behind_an_open_transaction: LEFT_OPEN,
    m.counts_records_instead_of_offsets: LEFT_OPEN,
    m.keeps_what_was_held_back_before: LEFT_OPEN,
    m.dates_what_is_held_back_by_its_last_record: LEFT_OPEN,
}

RARE: Mapping[Mutate, int] = {
    m.compares_only_the_rows_of_members: 52,
    m.records_the_keys_of_the_first_member: 64,
    m.passes_every_append_that_names_keys: 58,
    m.takes_every_update_for_one_that_keeps_the_keys: 7,
    m.notes_of_several_updates_what_the_last_one_changes: 7,
    m.believes_that_a_taken_number_is_foreign: 5,
    m.takes_a_lost_answer_for_a_good_one: 9,
    m.leaves_transaction_files_to_who_died: 14,
    m.answers_without_the_transaction_file: 21,
    m.acknowledges_past_a_slower_part: 8,
    m.acknowledges_what_no_version_carries: 19,
    m.begins_where_the_latest_version_says: 9,
    m.looks_only_above_the_read_version: 14,
    m.takes_what_is_unread_for_new: 7,
    m.forgets_uuids_of_its_own_group: 6,
    m.looks_above_a_head_of_long_ago: 12,
    m.counts_from_when_a_put_was_answered: 12,
    m.looks_at_what_it_builds_on_before_it_puts_only: 4,
    m.compares_only_when_the_epoch_changes: 15,
    m.believes_what_others_make_up: 7,
    m.does_not_answer_what_another_settled: 9,
    m.keeps_what_was_fetched_before: 9,
    m.lowers_the_position: 7,
    m.lets_refusals_wait_as_long_as_an_outage_took: 7,
    m.does_not_look_into_a_group_of_errors: 4,
    m.blames_records_for_outages: 9,
    m.forgets_the_pause_where_another_writer_drops_it: 4,
}
"""Mutations that few seeds notice, each with a seed that does: the suite tries it first.

`python -m tests.simulation --mutations` prints the seeds.
"""


def notice(mutate: Mutate, seeds: Iterable[int]) -> Report | None:
    """Return the first run that notices the mutation."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        reports = (HUNTS[mutate].run(seed) for seed in seeds)
        return next((report for report in reports if report.violation is not None), None)
