"""Upserts against a stream of appends: refused twice, they get a turn; and nobody waits longer than was promised."""

from __future__ import annotations

import time
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd_client import Reexecution, SyncCommitClient, staging
from committerd_common.messages import Outcome, Status, Transaction
from harness.daemon import Daemon
from harness.scene import STAYS, Scene, until
from harness.turns import upserts_under_appends as load
from harness.turns.load import Dataset, Load

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

_PATIENT = "30"
"""Seconds of a hold that must not run out on a slow machine."""


def started(scene: Scene, **settings: str) -> Daemon:
    """A committer that does not start anew: it would know of no refusal."""
    return scene.started(**STAYS, **settings)


def upsert(scene: Scene) -> Transaction:
    """Work that contradicts every Append since the latest version: it adds a key."""
    table = scene.table.open()
    ids = [scene.table.ids()[0], *scene.table.new_ids(1)]
    made = staging.merge_insert(table, pa.table({"id": ids}), on="id").transaction
    scene.table.brought[made.uuid] = ids[1:]
    return made


def refused_once(scene: Scene) -> Transaction:
    """A first try, refused: an append was committed between its execution and its commit."""
    first = upsert(scene)
    scene.committed()
    assert statuses(scene.ask(first)) == [Status.RETRYABLE]
    return first


def refused_twice(scene: Scene) -> Transaction:
    """The second try, refused in the same way."""
    first = refused_once(scene)
    second = upsert(scene)
    scene.committed()
    assert statuses(scene.ask(second, attempt="2", retry_of=first.uuid)) == [Status.RETRYABLE]
    return second


def two_refused_twice(scene: Scene) -> list[Transaction]:
    """The second tries of two that don't contradict each other. The second comes while the first one's hold goes on."""
    firsts = [upsert(scene), insert(scene)]
    scene.committed()
    assert statuses(scene.ask(*firsts)) == [Status.RETRYABLE] * 2
    seconds = [upsert(scene), insert(scene)]
    scene.committed()
    staged = [again(scene, work, 2, first) for work, first in zip(seconds, firsts, strict=True)]
    assert statuses(scene.topics.wait_answers(staged)) == [Status.RETRYABLE] * 2
    return seconds


def again(scene: Scene, work: Transaction, attempt: int, refused: Transaction) -> int:
    """Stage the next try; its offset."""
    return scene.stage(work, headers={"attempt": str(attempt), "retry-of": refused.uuid})[0]


def statuses(answers: list[Outcome]) -> list[int]:
    return [answer.status for answer in answers]


def holds(daemon: Daemon, ended: str) -> float:
    return daemon.metric("committerd_holds_total", ended=ended)


def test_the_third_try_goes_before_appends_that_came_earlier(scene: Scene) -> None:
    scene.table.create(3)
    daemon = started(scene, COMMIT__HOLD_SECONDS_MAX=_PATIENT)
    second = refused_twice(scene)
    appends = scene.append(5)
    third = upsert(scene)
    (won,) = scene.ask(third, attempt="3", retry_of=second.uuid)
    answers = scene.topics.wait_answers(appends)
    assert won.status == Status.COMMITTED
    assert won.offset > max(appends)
    assert statuses(answers) == [Status.COMMITTED] * 5
    assert all(answer.version > won.version for answer in answers)
    assert (holds(daemon, "arrived"), holds(daemon, "expired")) == (1, 0)
    assert 0 < daemon.metric("committerd_hold_seconds_total") <= float(_PATIENT)
    scene.audit(scene.expected_ids(*range(3)))


def test_a_refusal_is_a_ticket_for_one_record_of_its_producer(scene: Scene) -> None:
    """Whoever names a refused transaction again and again, or that of another producer, waits as all others do."""
    scene.table.create(3)
    daemon = started(scene, COMMIT__COALESCE="none", COMMIT__HOLD_SECONDS_MAX="0")
    first = upsert(scene)
    scene.committed()
    assert statuses(scene.ask(first, producer="p")) == [Status.RETRYABLE]
    daemon.freeze()
    # The request for records that it has sent returns the first one alone, and the next request returns all others.
    staged = scene.append() + scene.append(19)
    named = {"retry-of": first.uuid, "attempt": "2"}
    others = [scene.table.append() for _ in range(4)]
    for work, producer in zip(others, ("q", "p", "p", "p"), strict=True):
        staged += scene.stage(work, headers=named | {"producer": producer})
    daemon.thaw()
    answers = scene.topics.wait_answers(staged)
    assert statuses(answers) == [Status.COMMITTED] * 24
    places = sorted(range(24), key=lambda place: answers[place].version)
    went_first = 21
    assert places.index(went_first) < 20, "it waited for all that came earlier"
    assert [place for place in places if place != went_first] == [place for place in range(24) if place != went_first]
    scene.audit(scene.expected_ids(*range(3)))


def test_whose_turn_it_is_goes_before_re_executions_that_came_earlier(scene: Scene) -> None:
    scene.table.create(3)
    started(scene, COMMIT__HOLD_SECONDS_MAX=_PATIENT)
    other = refused_once(scene)
    second = refused_twice(scene)
    # It changes the row that the third try changes, and is staged before it.
    rival = again(scene, upsert(scene), 2, other)
    (won,) = scene.ask(upsert(scene), attempt="3", retry_of=second.uuid)
    assert won.status == Status.COMMITTED
    assert statuses(scene.topics.wait_answers([rival])) == [Status.RETRYABLE]
    scene.audit(scene.expected_ids(*range(3)))


def test_all_whose_turn_it_is_go_before_re_executions_that_came_earlier(scene: Scene) -> None:
    """They may arrive at once, and each is a version of its own."""
    scene.table.create(3)
    started(scene, COMMIT__HOLD_SECONDS_MAX=_PATIENT)
    other = refused_once(scene)
    seconds = two_refused_twice(scene)
    rival = again(scene, upsert(scene), 2, other)
    # The one that the rival contradicts comes last.
    thirds = [insert(scene), upsert(scene)]
    staged = [again(scene, work, 3, second) for work, second in zip(thirds, reversed(seconds), strict=True)]
    assert statuses(scene.topics.wait_answers(staged)) == [Status.COMMITTED] * 2
    assert statuses(scene.topics.wait_answers([rival])) == [Status.RETRYABLE]
    scene.audit(scene.expected_ids(*range(3)))


def test_two_that_are_waited_for_together_both_win(scene: Scene) -> None:
    scene.table.create(3)
    daemon = started(scene, COMMIT__HOLD_SECONDS_MAX=_PATIENT, COMMIT__GROUP_RECORDS_MAX="1")
    seconds = two_refused_twice(scene)
    appends = scene.append(3)
    thirds = [upsert(scene), insert(scene)]
    (one,) = scene.ask(thirds[0], attempt="3", retry_of=seconds[0].uuid)
    assert one.status == Status.COMMITTED, "it does not wait for the other"
    (other,) = scene.ask(thirds[1], attempt="3", retry_of=seconds[1].uuid)
    assert other.status == Status.COMMITTED
    answers = scene.topics.wait_answers(appends)
    assert all(answer.version > max(one.version, other.version) for answer in answers)
    assert (holds(daemon, "arrived"), holds(daemon, "expired")) == (1, 0)
    scene.audit(scene.expected_ids(*range(3)))


def insert(scene: Scene) -> Transaction:
    """An upsert that rewrites nothing and adds a key."""
    ids = scene.table.new_ids(1)
    made = staging.merge_insert(scene.table.open(), pa.table({"id": ids}), on="id").transaction
    scene.table.brought[made.uuid] = ids
    return made


def test_a_producer_that_dies_after_its_second_try_stops_nobody_for_long(scene: Scene) -> None:
    scene.table.create(3)
    begun = time.monotonic()
    daemon = started(scene, COMMIT__HOLD_SECONDS_MAX="1")
    refused_twice(scene)
    answers = scene.topics.wait_answers(scene.append(5))
    assert statuses(answers) == [Status.COMMITTED] * 5
    until(lambda: holds(daemon, "expired") == 1)
    assert holds(daemon, "arrived") == 0
    held = daemon.metric("committerd_hold_seconds_total")
    assert 0 < held <= 1.0
    # However many die like that: a hold at the start, and a quarter of the time.
    for _ in range(3):
        refused_twice(scene)
        scene.committed()
    held = daemon.metric("committerd_hold_seconds_total")
    assert held <= 1.0 + 0.25 * (time.monotonic() - begun)
    scene.audit(scene.expected_ids(*range(3)))


def test_reexecute_brings_an_upsert_in(scene: Scene) -> None:
    """Whoever writes between the tries: the callback reads anew, and the client says whose next try it is."""
    scene.table.create(3)
    daemon = started(scene, COMMIT__HOLD_SECONDS_MAX=_PATIENT)
    asked: list[Reexecution] = []

    def execute(wanted: Reexecution | None = None) -> Any:
        work = upsert(scene)
        if wanted is None or wanted.attempt == 2:
            foreign.extend(scene.table.write())
        if wanted is not None:
            asked.append(wanted)
        return work

    foreign: list[int] = []
    with SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri) as client:
        result = client.commit(execute(), reexecute=execute, timeout=120)
    assert result.attempts == 3
    assert [wanted.attempt for wanted in asked] == [2, 3]
    assert all(wanted.error.conflicting_operation == "append" for wanted in asked)
    assert holds(daemon, "arrived") == 1
    scene.audit(scene.expected_ids(*range(3), *foreign))


@pytest.mark.slow
async def test_upserts_win_while_others_append(scene: Scene) -> None:
    chosen = Load(upserts=30, upserters=3, appends_per_second=40, timeout=240)
    load.create(scene.table.uri, chosen)
    started(scene, COMMIT__HOLD_SECONDS_MAX="10")
    dataset = Dataset(servers=scene.topics.servers, name=scene.name, uri=scene.table.uri)
    measured = await load.run(dataset, chosen)
    assert (len(measured.upserts), measured.lost, measured.not_appended) == (30, [], {})
    assert len(measured.appended) > 10
    assert not load.wrong_rows(scene.table.uri, chosen, measured)


async def test_writers_of_one_row_get_their_turn_one_after_the_other(scene: Scene) -> None:
    chosen = Load(upserts=24, upserters=4, appends_per_second=20, timeout=240, names_keys=True, shares_row=True)
    load.create(scene.table.uri, chosen)
    daemon = started(scene, COMMIT__HOLD_SECONDS_MAX="20")
    dataset = Dataset(servers=scene.topics.servers, name=scene.name, uri=scene.table.uri)
    measured = await load.run(dataset, chosen)
    assert (len(measured.upserts), measured.lost, measured.not_appended) == (24, [], {})
    assert measured.attempts()[-1] == 2
    assert not load.wrong_rows(scene.table.uri, chosen, measured)
    assert daemon.metric("committerd_precedences_total", ended="arrived") > 5
    assert holds(daemon, "arrived") == 0


def test_a_transaction_too_large_for_kafka_is_committed_from_beside_the_table(scene: Scene) -> None:
    scene.table.create()
    started(scene)
    made = scene.table.append()
    made.transaction_properties["note"] = "x" * 3_000_000
    with SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri) as client:
        since = client.bookmark()
        result = client.commit(made, timeout=120)
        assert client.commit(made, timeout=120).duplicate
        assert client.resume(made.uuid, since=since, timeout=0).version == result.version
    assert result.version == 2
    said: Any = lance.dataset(scene.table.uri).read_transaction(2)
    assert (said.uuid, len(said.transaction_properties["note"])) == (made.uuid, 3_000_000)
    # Long after the answer is gone from the topic, the table's history knows.
    with SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri) as client:
        later = client.resume(made.uuid, since=client.bookmark(), timeout=0)
    assert (later.version, later.operation) == (2, "append")
