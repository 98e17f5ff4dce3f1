"""Whether a record was settled before: by uuid, by application version, and within the group."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from committerd.queue import ledger as module
from committerd.queue.dedupe import dedupe, looked_for_above, no_room_for
from committerd.queue.ledger import (
    LEDGER_BYTES,
    NOT_SEEN,
    Earlier,
    Known,
    Ledger,
    OlderVersions,
    hashes_of,
    names,
    refusal_in,
)
from committerd.queue.outcomes import Settled, Status, short
from committerd.queue.position import AppMark
from committerd_common.messages import DUPLICATE, INVALID, RETRYABLE, Member, Refusal, Transaction
from committerd_common.request import AppUnit, Envelope, Request

MARKS = {"spark": AppMark(run="q1", version=7, uuid="u7", table_version=40, used_ms=0)}


def asked(uuid: str = "u", *, app: AppUnit | None = None, is_replay: bool = False) -> Request:
    envelope = Envelope(app=app, replay_of="t:1" if is_replay else None)
    return Request(offset=0, envelope=envelope, transaction=Transaction(uuid=uuid, read_version=1), size=1)


BAD = Refusal(offset=2, uuid="bad", status=INVALID, reason="path_invalid", message="m", conflicting_version=3)
OURS = Settled(
    version=5,
    uuid="v5",
    operation="append",
    ours=True,
    members=[Member(offset=0, uuid="a"), Member(offset=1, uuid="b")],
    refusals=[
        BAD,
        Refusal(offset=3, uuid="a", status=DUPLICATE, reason="uuid_seen", version=5),
        Refusal(offset=4, status=INVALID, reason="record_empty"),
    ],
)
FOREIGN = Settled(version=6, uuid="f", operation="append", ours=False)


class TestDedupe:
    def test_a_uuid_that_a_version_has_is_a_duplicate(self) -> None:
        answer = dedupe(asked("a"), Earlier(committed=5), {}, version=7)
        assert answer is not None
        assert (answer.status, answer.reason, answer.version) == (Status.DUPLICATE, "uuid_seen", 5)

    def test_a_uuid_twice_in_one_group_is_committed_once(self) -> None:
        answer = dedupe(asked("x"), NOT_SEEN, {}, version=9, members={"x"})
        assert answer is not None
        assert answer.version == 9

    def test_a_refused_uuid_gets_the_same_answer_again_unless_it_is_a_replay(self) -> None:
        answer = dedupe(asked("bad"), Earlier(refusal=BAD), {}, version=6)
        assert answer is not None
        assert (answer.status, answer.reason, answer.message, answer.conflicting_version) == (
            Status.INVALID,
            "path_invalid",
            "m",
            3,
        )
        assert dedupe(asked("bad", is_replay=True), Earlier(refusal=BAD), {}, version=6) is None

    def test_a_refusal_in_the_same_group_counts_and_a_duplicate_there_does_not(self) -> None:
        mates = [Refusal(uuid="x", status=DUPLICATE), Refusal(uuid="y", status=INVALID, reason="r")]
        assert dedupe(asked("x"), NOT_SEEN, {}, version=2, refusals=mates) is None
        answer = dedupe(asked("y"), NOT_SEEN, {}, version=2, refusals=mates)
        assert answer is not None
        assert answer.reason == "r"

    @pytest.mark.parametrize(("version", "expected"), [(6, 0), (7, 40)])
    def test_an_application_version_at_or_below_the_mark_is_a_duplicate(self, version: int, expected: int) -> None:
        app = AppUnit(app_id="spark", version=version, run="q1")
        answer = dedupe(asked(app=app), NOT_SEEN, MARKS, version=50)
        assert answer is not None
        assert (answer.status, answer.reason, answer.version) == (Status.DUPLICATE, "app_version_seen", expected)

    def test_the_next_application_version_is_new(self) -> None:
        assert dedupe(asked(app=AppUnit(app_id="spark", version=8, run="q1")), NOT_SEEN, MARKS, version=50) is None

    @pytest.mark.parametrize(
        ("marks", "after", "refused"),
        [
            (MARKS, 7, False),
            (MARKS, 6, True),
            (MARKS, 8, True),
            (MARKS, 0, True),
            ({}, 0, False),
            ({}, 7, True),
            ({"spark": AppMark(run="", version=-1, uuid="u7", table_version=40, used_ms=0, life=1)}, 0, False),
            ({"spark": AppMark(run="", version=-1, uuid="u7", table_version=40, used_ms=0, life=1)}, 7, True),
        ],
    )
    def test_a_unit_that_must_follow_another_one_follows_no_other(
        self, marks: dict[str, AppMark], after: int, *, refused: bool
    ) -> None:
        app = AppUnit(app_id="spark", version=9, run="q1", after=after)
        answer = dedupe(asked(app=app), NOT_SEEN, marks, version=50)
        found = None if answer is None else (answer.status, answer.reason)
        assert found == ((Status.RETRYABLE, "mark_moved") if refused else None)

    def test_a_unit_in_the_table_is_a_duplicate_whatever_it_must_follow(self) -> None:
        app = AppUnit(app_id="spark", version=7, run="q1", after=5)
        answer = dedupe(asked(app=app), NOT_SEEN, MARKS, version=50)
        assert answer is not None
        assert answer.status is Status.DUPLICATE

    def test_another_run_of_the_same_application_is_refused_and_told_the_way_out(self) -> None:
        answer = dedupe(asked(app=AppUnit(app_id="spark", version=0, run="q2")), NOT_SEEN, MARKS, version=50)
        assert answer is not None
        assert (answer.status, answer.reason) == (Status.INVALID, "app_id_in_use")
        assert "committerd app release spark" in answer.message

    def test_a_new_application_without_room_is_told_the_way_out(self) -> None:
        answer = no_room_for(AppUnit(app_id="loads", version=0), most=1000)
        assert (answer.status, answer.reason) == (Status.INVALID, "app_marks_full")
        for words in ("commit.app_marks_max is 1000", "committerd app release", "committerd dead replay"):
            assert words in answer.message

    def test_what_was_refused_before_another_run_began_gets_the_same_answer_again(self) -> None:
        app = AppUnit(app_id="spark", version=0, run="q2")
        answer = dedupe(asked("bad", app=app), Earlier(refusal=BAD), MARKS, version=50)
        assert answer is not None
        assert answer.reason == "path_invalid"
        answer = dedupe(asked("bad", app=app, is_replay=True), Earlier(refusal=BAD), MARKS, version=50)
        assert answer is not None
        assert answer.reason == "app_id_in_use"

    def test_a_released_or_unknown_application_may_start_anew(self) -> None:
        released = {"spark": AppMark(run="", version=-1, uuid="u7", table_version=40, used_ms=0, life=1)}
        app = AppUnit(app_id="spark", version=0, run="q2")
        assert dedupe(asked(app=app), NOT_SEEN, released, version=50) is None
        assert dedupe(asked(app=app), NOT_SEEN, {}, version=50) is None

    def test_the_uuid_counts_before_the_application(self) -> None:
        app = AppUnit(app_id="spark", version=0, run="q2")
        answer = dedupe(asked("a", app=app), Earlier(committed=5), MARKS, version=50)
        assert answer is not None
        assert answer.reason == "uuid_seen"

    def test_a_version_that_is_not_known_any_more_leaves_it_undecided(self) -> None:
        for replay in (False, True):
            answer = dedupe(asked("a", is_replay=replay), Earlier(unknown_at=4), {}, version=50)
            assert answer is not None
            assert (answer.status, answer.reason, answer.conflicting_version) == (Status.UNDECIDED, "history_gap", 4)
            assert "memory.ledger_bytes" in short(answer.message)

    def test_an_application_version_rules_out_what_is_not_known_any_more(self) -> None:
        app = AppUnit(app_id="spark", version=8, run="q1")
        assert dedupe(asked(app=app), Earlier(unknown_at=4), MARKS, version=50) is None

    def test_what_is_known_counts_before_what_is_not(self) -> None:
        answer = dedupe(asked("a"), Earlier(committed=9, unknown_at=4), {}, version=50)
        assert answer is not None
        assert answer.reason == "uuid_seen"
        answer = dedupe(asked("bad"), Earlier(refusal=BAD, unknown_at=4), {}, version=50)
        assert answer is not None
        assert answer.reason == "path_invalid"


@pytest.mark.parametrize(
    ("earlier", "found"),
    [
        (Earlier(committed=3, unknown_at=1), "committed"),
        (Earlier(refusal=BAD, unknown_at=1), "refused"),
        (Earlier(unknown_at=1), "unknown"),
        (NOT_SEEN, "new"),
    ],
)
def test_what_is_known_of_a_uuid_in_one_word(earlier: Earlier, found: str) -> None:
    assert earlier.found == found


def test_a_version_names_its_own_uuid_and_those_of_its_members() -> None:
    assert [names(OURS, one) for one in ("v5", "a", "b", "bad", "f")] == [True, True, True, False, False]
    assert refusal_in(OURS, "bad") == BAD
    assert refusal_in(OURS, "a") is None


def ledger(*settled: Settled, bytes_max: int = LEDGER_BYTES) -> Ledger:
    known = Ledger(bytes_max)
    for one in settled:
        known = known.then(one)
    return known


def loaded(*settled: Settled, bytes_max: int = LEDGER_BYTES) -> Ledger:
    """As Start does it: the newest first."""
    return older_of(*settled, bytes_max=bytes_max).ledger()


def older_of(*settled: Settled, bytes_max: int = LEDGER_BYTES) -> OlderVersions:
    older = OlderVersions(bytes_max)
    for one in reversed(settled):
        add(older, one)
    return older


def add(older: OlderVersions, settled: Settled) -> bool:
    return older.add(settled.version, hashes_of(settled))


class TestLedger:
    def test_knows_the_newest_exactly(self) -> None:
        known = ledger(OURS, FOREIGN)
        assert [known.known(one) for one in ("a", "b", "v5", "f")] == [Known(n, None, ()) for n in (5, 5, 5, 6)]
        assert known.known("bad") == Known(None, BAD, [])
        assert known.rules_out("x", 0)
        assert not any(known.rules_out(one, 1) for one in ("a", "v5", "f", "bad"))
        assert known.floor == 0

    @pytest.mark.parametrize("of", [ledger, loaded])
    def test_looks_at_or_below_the_read_version_too(self, of: Callable[..., Ledger]) -> None:
        """A producer that opens the table again stages the same uuid at a newer version."""
        known = of(OURS, FOREIGN)
        assert not any(known.rules_out(one, 6) for one in ("a", "b", "v5", "f"))
        assert possible(known, "a") == [5]
        assert known.rules_out("x", 6)

    def test_says_where_to_look_for_what_start_has_read(self) -> None:
        known = loaded(OURS, FOREIGN)
        assert [known.known(one) for one in ("a", "b", "v5", "bad", "f", "x")] == [
            Known(None, None, maybe) for maybe in ([5], [5], [5], [5], [6], [])
        ]
        assert not known.rules_out("a", 5)
        assert not known.rules_out("bad", 5)

    def test_a_uuid_committed_twice_by_others_is_found_at_its_last_version(self) -> None:
        again = Settled(version=9, uuid="f", operation="append", ours=False)
        nameless = Settled(version=10, uuid="", operation="", ours=False)
        assert ledger(FOREIGN, again, nameless).known("f") == Known(9, None, ())
        assert loaded(FOREIGN, again, nameless).known("f") == Known(None, None, [9, 6])

    def test_the_next_ledger_knows_one_version_more_and_this_one_does_not(self) -> None:
        known = ledger(FOREIGN)
        later = known.then(replace(OURS, version=7))
        assert (later.known("f").committed, later.known("a").committed) == (6, 7)
        assert not later.rules_out("f", 1)
        assert later.rules_out("nobody", 1)
        assert known.rules_out("a", 1)
        assert known.known("bad") == Known(None, None, [])
        assert later.known("bad") == Known(None, BAD, [])
        assert later.bytes > known.bytes

    def test_two_ledgers_that_follow_one_know_nothing_of_each_other(self) -> None:
        known = ledger(*(version_of(number, [f"u{number}"], [f"r{number}"]) for number in range(1, 40)))
        one, other = known.then(version_of(40, ["one"], ["no"])), known.then(version_of(40, ["other"], ["not"]))
        assert [one.rules_out(uuid, 0) for uuid in ("one", "no", "other", "not")] == [False, False, True, True]
        assert [other.rules_out(uuid, 0) for uuid in ("one", "no", "other", "not")] == [True, True, False, False]
        assert not any(one.rules_out(f"u{number}", 0) for number in range(1, 40))

    def test_the_newest_refusal_of_a_uuid_counts(self) -> None:
        anew = Refusal(offset=9, uuid="bad", status=RETRYABLE, reason="conflict")
        known = ledger(OURS, Settled(version=8, uuid="v8", operation="append", ours=True, refusals=[anew]))
        assert known.known("bad").refusal == anew
        assert known.then(replace(OURS, version=9)).known("bad").refusal == BAD

    def test_a_refusal_hides_no_version_that_holds_the_same_uuid(self) -> None:
        by_hand = Settled(version=3, uuid="bad", operation="append", ours=False)
        many = [version_of(4, [f"u{n}" for n in range(100)])]
        assert ledger(by_hand, *many, OURS).known("bad") == Known(3, BAD, ())
        assert loaded(by_hand, *many).then(OURS).known("bad") == Known(None, BAD, [3])
        assert loaded(OURS).then(replace(by_hand, version=9)).known("bad") == Known(9, None, ())


def version_of(number: int, uuids: list[str], refused: list[str] | None = None) -> Settled:
    return Settled(
        version=number,
        uuid="",
        operation="append",
        ours=True,
        members=[Member(offset=0, uuid=one) for one in uuids],
        refusals=[Refusal(uuid=one, status=INVALID, reason="r") for one in refused or ()],
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few uuids."""
    monkeypatch.setattr(module, "_RUN_ENTRIES_MAX", 64)
    monkeypatch.setattr(module, "_RECENT_BYTES_MAX", 10_000)


def possible(known: Ledger, one: str) -> list[int]:
    version, _, maybe = known.known(one)
    return [version] if version is not None else list(maybe)


@pytest.mark.parametrize("bytes_max", [500, 3000, 10_000, 1_000_000])
@pytest.mark.parametrize("at_start", [0, 150, 300])
@pytest.mark.parametrize("step", [1, 400])
@pytest.mark.usefixtures("small")
def test_nothing_that_was_dropped_counts_as_new(bytes_max: int, at_start: int, step: int) -> None:
    """Versions up to some thousand numbers apart; the first ones are read at Start, the others added later."""
    rng = random.Random(f"{bytes_max} {at_start} {step}")
    history = {}
    for place in range(300):
        uuids, refused = ([str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(rng.randint(0, n))] for n in (8, 3))
        history[1 + place * step] = version_of(1 + place * step, uuids, refused)
    versions = list(history.values())
    known = loaded(*versions[:at_start], bytes_max=bytes_max)
    for one in versions[at_start:]:
        known = known.then(one)
    assert known.bytes <= 2 * bytes_max + 8000
    for number, settled in history.items():
        for member in settled.members:
            if number > known.floor:
                assert not known.rules_out(member.uuid, versions[-1].version)
                assert possible(known, member.uuid) == [number]
            assert not known.rules_out(member.uuid, number - 1)
        for refusal in settled.refusals:
            assert not known.rules_out(refusal.uuid, 0)
            _, known_refusal, maybe = known.known(refusal.uuid)
            assert known_refusal is not None or list(maybe) == [number] or number <= known.floor
    new = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(100)]
    assert all(known.rules_out(one, known.floor) for one in new)
    assert known.floor == 0 or not any(known.rules_out(one, known.floor - 1) for one in new)
    assert (known.floor == 0) is (bytes_max == 1_000_000)


@pytest.mark.parametrize("at_start", [0, 150, 300])
@pytest.mark.usefixtures("small")
def test_nothing_counts_as_new_that_was_dropped_when_other_tables_needed_the_memory(at_start: int) -> None:
    rng = random.Random(f"within {at_start}")
    versions = [version_of(1 + n, [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(5)]) for n in range(300)]
    older = OlderVersions()
    bound = LEDGER_BYTES
    for one in reversed(versions[:at_start]):
        bound = rng.choice([4_000, 8_000, bound])
        older.keep_within(bound)
        add(older, one)
        assert older.bytes <= bound + 8 * 5 * 100
    known = older.ledger()
    for one in versions[at_start:]:
        known = known.within(rng.choice([2_000, 4_000, 8_000, known.bytes_max])).then(one)
    known = known.within(2_000)
    assert known.within(2_000) is known
    assert 0 < known.floor < 300
    assert known.bytes <= 2_000 + 8_000
    for settled in versions:
        for member in settled.members:
            assert not known.rules_out(member.uuid, settled.version - 1)
            assert settled.version <= known.floor or possible(known, member.uuid) == [settled.version]


def test_a_ledger_that_gives_memory_back_keeps_the_newest_versions_that_fit() -> None:
    versions = [version_of(1 + n, [f"u{n}-{m}" for m in range(9)]) for n in range(100)]
    known = loaded(*versions)
    assert (known.bytes, known.floor) == (100 * 72, 0)
    smaller = known.within(4_000)
    assert (smaller.bytes, smaller.floor) == (48 * 72, 52)
    assert not any(smaller.rules_out(f"u{n}-3", n) for n in range(100))
    assert all(possible(smaller, f"u{n}-3") == [1 + n] for n in range(52, 100))
    assert smaller.within(100).floor == 99
    assert smaller.within(7) == Ledger(7, floor=100)


def test_once_it_is_full_nothing_older_is_taken_in() -> None:
    older = OlderVersions(160)
    assert add(older, version_of(9, ["i"]))
    assert not add(older, version_of(8, [str(n) for n in range(40)]))
    assert not add(older, version_of(7, ["g"]))
    known = older.ledger()
    assert known.floor == 8
    assert possible(known, "i") == [9]


def test_a_run_has_fewer_versions_than_its_numbers_can_tell_apart() -> None:
    numbers = [1, 2, 40_000, 65_537, 70_000, 200_000, 200_001]
    versions = [version_of(number, [f"u{number}"]) for number in numbers]
    for known in (loaded(*versions), ledger(*versions, bytes_max=600)):
        assert [possible(known, f"u{number}") for number in numbers] == [[number] for number in numbers]


def test_ten_million_records_take_eight_bytes_each() -> None:
    """At a hundredth of the size."""
    known = loaded(*(version_of(number, [f"{number} {place}" for place in range(1000)]) for number in range(1, 101)))
    assert known.bytes == 8 * 100_000
    assert known.known("50 7") == Known(None, None, [50])


@pytest.mark.usefixtures("small")
def test_a_ledger_whose_dropped_versions_are_gone_rules_out_again_what_is_new() -> None:
    rng = random.Random(1)
    known = loaded(bytes_max=500)
    for number in range(1, 301):
        known = known.then(version_of(number, [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(8)], []))
    new = str(uuid.UUID(int=rng.getrandbits(128)))
    assert known.floor > 0
    assert not known.rules_out(new, 0)
    assert replace(known, floor=0).rules_out(new, 0)


@pytest.mark.parametrize("bytes_max", [600, 1_000_000])
@pytest.mark.parametrize("read_at_start", [1, 10])
@pytest.mark.usefixtures("small")
def test_while_older_versions_are_unread_it_knows_what_it_covers(
    bytes_max: int, read_at_start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in several steps, while newer versions are added."""
    history = [version_of(n, [f"c{n}"], [f"r{n}"] if n % 3 == 0 else []) for n in range(1, 121)]
    older = older_of(*history[100 - read_at_start : 100], bytes_max=bytes_max)
    monkeypatch.setattr(module, "KNOWN_VERSIONS", 30)
    known = older.ledger().with_unread(101 - read_at_start, newest=100)
    unread_below, latest, full = known.unread_below, 100, False
    while unread_below and not full:
        assert not known.covers(unread_below - 2)
        knows_enough = unread_below <= 71
        assert known.covers(unread_below - 1) is known.covers(latest) is knows_enough
        assert known.unknown_up_to == unread_below - 1
        for one in history[:latest]:
            assert not known.rules_out(one.members[0].uuid, one.version - 1)
            if one.version >= unread_below:
                assert possible(known, one.members[0].uuid) == [one.version]
                assert not one.refusals or not known.rules_out(one.refusals[0].uuid, unread_below)
        assert known.rules_out("new", unread_below - 1) is (known.floor < unread_below)
        assert not known.rules_out("new", unread_below - 2)
        known, latest = known.then(history[latest]), latest + 1
        for one in reversed(history[max(0, unread_below - 11) : unread_below - 1]):
            full = full or not add(older, one)
        unread_below = max(unread_below - 10, 1) if unread_below > 1 else 0
        if full or unread_below == 1:
            unread_below = 0
        known = known.with_older(older.ledger(), unread_below=unread_below)
    assert (known.unread_below, known.unknown_up_to) == (0, known.floor)
    assert (known.floor > 0) is (bytes_max < 1_000_000)
    assert known.bytes <= bytes_max + 150 * 128
    for one in history[:latest]:
        uuid, refusals = one.members[0].uuid, one.refusals
        assert not known.rules_out(uuid, one.version - 1)
        if one.version > known.floor:
            assert possible(known, uuid) == [one.version]
            assert not refusals or known.known(refusals[0].uuid) != Known(None, None, [])
    assert known.rules_out("new", known.floor)
    assert known.covers(0)
    assert known.with_older(Ledger(), unread_below=7) is known


def test_without_a_ledger_the_newest_versions_are_searched_at_least() -> None:
    cases = [(0, 5), (4, 5), (0, 5000), (3000, 5000), (4999, 5000)]
    assert [looked_for_above(read, latest=latest) for read, latest in cases] == [0, 0, 0, 3000, 4000]


def test_a_record_waits_for_no_more_than_the_newest_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be in few versions, or in many."""
    monkeypatch.setattr(module, "KNOWN_RECORDS", 60)
    older = older_of(version_of(9, [f"a{n}" for n in range(30)]))
    known = older.ledger().with_unread(9, newest=9)
    assert not known.covers(9)
    add(older, version_of(8, [f"b{n}" for n in range(29)]))
    assert not known.with_older(older.ledger(), unread_below=8).covers(9)
    add(older, version_of(7, ["c"]))
    known = known.with_older(older.ledger(), unread_below=7)
    assert [known.covers(read_version) for read_version in (5, 6, 9)] == [False, True, True]


def test_what_was_read_of_older_versions_counts_at_once() -> None:
    older = older_of(version_of(9, ["i"], ["no"]))
    newest = older.ledger()
    add(older, version_of(8, ["h"], ["never"]))
    known = newest.with_unread(9, newest=9).with_older(older.ledger(), unread_below=8)
    assert known.bytes > newest.bytes
    assert possible(known, "h") == [8]
    assert known.known("never") == Known(None, None, [8])
    assert not known.rules_out("never", 8)
    assert known.rules_out("new", 7)
    assert not known.rules_out("new", 6)
