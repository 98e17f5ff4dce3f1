"""Delivery when assignments, seeks and revocations happen in between, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from kafka import TopicPartition

from committerd.kafka.assignment import Assignment, Delivery
from committerd.kafka.consumer import GroupMember, Share
from committerd.queue.port import Assigned, Fetched, FetchFailed, Record, Revoked, record_size
from committerd.settings.kafka import KafkaSettings

STAGED = TopicPartition("t.staged", 0)
OTHER = TopicPartition("t.staged", 1)
RECORD = Record(offset=5, value=b"12345", key=b"67890")


@dataclass
class Consumer:
    """Records the calls to kafka-python. Without a partition it raises, as kafka-python does."""

    assigned: set[TopicPartition] = field(default_factory=lambda: {STAGED, OTHER})
    paused: set[TopicPartition] = field(default_factory=set)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    _fetcher: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            _paused_completed_fetches={},
            _paused_partition_records={},
            _completed_fetches=[],
            _next_partition_records=None,
        )
    )

    def pause(self, *partitions: TopicPartition) -> None:
        if not self.assigned.issuperset(partitions):
            raise KeyError(partitions)
        self.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused.difference_update(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if partition not in self.assigned:
            raise ValueError("Unassigned partition")
        self.positions[partition] = offset


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


@pytest.fixture
def assignment() -> Assignment:
    return Assignment(STAGED, records_max=8, bytes_max=80)


def assign(assignment: Assignment, consumer: Consumer) -> int:
    assignment.assigned(consumer)
    return assignment.generation


def seek(assignment: Assignment, consumer: Consumer, offset: int = 0) -> None:
    number = assignment.begin_seek(assignment.generation)
    assert number is not None
    assignment.seek(consumer, assignment.generation, number, offset=offset)


def test_an_assignment_begins_paused_with_a_position(assignment: Assignment, consumer: Consumer) -> None:
    assignment.assigned(consumer)
    assert consumer.paused == {STAGED}
    assert consumer.positions == {STAGED: 0}
    assert [change.event for change in assignment.changes()] == [Assigned(generation=1)]
    assert assignment.hand_over(1, [RECORD]) is None


def test_it_waits_from_its_assignment_until_it_begins_to_be_served(assignment: Assignment, consumer: Consumer) -> None:
    assert not assignment.waiting
    generation = assign(assignment, consumer)
    assert assignment.waiting
    assignment.begin(generation - 1)
    assert assignment.waiting
    assignment.begin(generation)
    assert not assignment.waiting
    assignment.suspend(consumer)
    assert not assignment.waiting
    assignment.renew(consumer)
    assert assignment.waiting
    assert assignment.begin_seek(assignment.generation) is not None
    assert not assignment.waiting


def test_a_seek_opens_the_partition(assignment: Assignment, consumer: Consumer) -> None:
    generation = assign(assignment, consumer)
    seek(assignment, consumer, 5)
    assert consumer.positions[STAGED] == 5
    assert not consumer.paused
    delivery = assignment.hand_over(generation, [RECORD])
    assert delivery is not None
    assert delivery.event == Fetched(generation=generation, records=[RECORD])
    assert assignment.is_current(delivery)


def test_a_seek_drops_what_was_handed_over(assignment: Assignment, consumer: Consumer) -> None:
    generation = assign(assignment, consumer)
    seek(assignment, consumer)
    before = assignment.hand_over(generation, [RECORD])
    assert before is not None
    assignment.begin_seek(generation)
    assert not assignment.is_current(before)
    assert assignment.hand_over(generation, [RECORD]) is None


def test_a_seek_that_another_has_overtaken_does_nothing(assignment: Assignment, consumer: Consumer) -> None:
    generation = assign(assignment, consumer)
    first, second = assignment.begin_seek(generation), assignment.begin_seek(generation)
    assert first is not None
    assert second is not None
    assignment.seek(consumer, generation, first, offset=3)
    assert assignment.hand_over(generation, [RECORD]) is None
    assert consumer.positions[STAGED] == 0
    assignment.seek(consumer, generation, second, offset=7)
    assert assignment.hand_over(generation, [RECORD]) is not None
    assert consumer.positions[STAGED] == 7


@pytest.mark.parametrize("again", [False, True], ids=["revoked", "assigned again"])
def test_nothing_of_an_old_generation_is_done(assignment: Assignment, consumer: Consumer, again: bool) -> None:
    generation = assign(assignment, consumer)
    number = assignment.begin_seek(generation)
    assert number is not None
    assignment.revoked(lost=True)
    if again:
        assign(assignment, consumer)
    assignment.seek(consumer, generation, number, offset=9)
    assert consumer.positions[STAGED] == 0
    assert STAGED in consumer.paused
    assert assignment.begin_seek(generation) is None
    assert assignment.hand_over(generation, [RECORD]) is None
    assert not assignment.owns(generation)


def test_a_seek_of_a_partition_that_was_just_taken_is_none(assignment: Assignment, consumer: Consumer) -> None:
    generation = assign(assignment, consumer)
    number = assignment.begin_seek(generation)
    assert number is not None
    consumer.assigned.clear()  # the listener will be called in a moment
    assignment.seek(consumer, generation, number, offset=9)
    assert assignment.hand_over(generation, [RECORD]) is None


def test_a_revocation_is_told_once(assignment: Assignment, consumer: Consumer) -> None:
    generation = assign(assignment, consumer)
    assignment.changes()
    assignment.revoked(lost=False)
    assignment.revoked(lost=True)
    assert [c.event for c in assignment.changes()] == [Revoked(generation=generation, lost=False)]
    assert assignment.changes() == []


def test_what_was_read_again_is_outstanding_unless_there_was_a_seek(assignment: Assignment, consumer: Consumer) -> None:
    generation = assign(assignment, consumer)
    seek(assignment, consumer)
    seeks = assignment.seeks
    assignment.add(generation, seeks, [RECORD] * 7)
    assignment.throttle(consumer)
    assert STAGED not in consumer.paused
    assignment.add(generation, seeks, [RECORD])
    assignment.throttle(consumer)
    assert STAGED in consumer.paused
    assert not assignment.settle(generation, 1, 10)
    assert assignment.settle(generation, 1, 10)
    seek(assignment, consumer)
    assignment.add(generation, seeks, [RECORD] * 8)
    assignment.add(generation - 1, assignment.seeks, [RECORD] * 8)
    assignment.throttle(consumer)
    assert STAGED not in consumer.paused


def test_a_failure_parks_and_drops(assignment: Assignment, consumer: Consumer) -> None:
    generation = assign(assignment, consumer)
    seek(assignment, consumer)
    before = assignment.hand_over(generation, [RECORD])
    assert before is not None
    failed = assignment.fail(consumer, "gone")
    assert failed is not None
    assert failed.event == FetchFailed(generation=generation, reason="gone")
    assert not assignment.is_current(before)
    assert assignment.hand_over(generation, [RECORD]) is None
    assignment.revoked(lost=False)
    assert assignment.fail(consumer, "gone again") is None


def full(assignment: Assignment, consumer: Consumer) -> bool:
    assignment.throttle(consumer)
    return STAGED in consumer.paused


def test_is_full_at_the_limit_and_goes_on_when_a_quarter_is_free(assignment: Assignment, consumer: Consumer) -> None:
    generation = assign(assignment, consumer)
    seek(assignment, consumer)
    small = Record(offset=0, value=b"")
    assignment.hand_over(generation, [small] * 7)
    assert not full(assignment, consumer)
    assignment.hand_over(generation, [small])
    assert full(assignment, consumer)
    assignment.settle(generation, 1, 0)
    assert full(assignment, consumer)
    assignment.settle(generation, 1, 0)
    assert not full(assignment, consumer)


def test_bytes_fill_it_too(assignment: Assignment, consumer: Consumer) -> None:
    generation = assign(assignment, consumer)
    seek(assignment, consumer)
    assert record_size(RECORD) == 10
    heavy = Record(offset=0, value=bytes(79))
    assignment.hand_over(generation, [heavy])
    assert not full(assignment, consumer)
    assignment.hand_over(generation, [RECORD])
    assert full(assignment, consumer)
    assignment.settle(generation, 1, 79)
    assert not full(assignment, consumer)


def test_records_settled_twice_make_no_room_of_their_own(assignment: Assignment, consumer: Consumer) -> None:
    generation = assign(assignment, consumer)
    seek(assignment, consumer)
    assignment.settle(generation, 100, 1000)
    assignment.hand_over(generation, [RECORD] * 8)
    assert full(assignment, consumer)


def test_a_full_partition_is_not_opened_by_an_old_generation(assignment: Assignment, consumer: Consumer) -> None:
    generation = assign(assignment, consumer)
    seek(assignment, consumer)
    assignment.hand_over(generation, [RECORD] * 8)
    assert full(assignment, consumer)
    assignment.settle(generation - 1, 8, 80)
    assert full(assignment, consumer)


def test_throttling_does_not_open_a_parked_partition(assignment: Assignment, consumer: Consumer) -> None:
    assign(assignment, consumer)
    assert full(assignment, consumer)
    assert assignment.idle


def test_a_delivery_carries_the_seeks_before_it(assignment: Assignment, consumer: Consumer) -> None:
    generation = assign(assignment, consumer)
    seek(assignment, consumer)
    seek(assignment, consumer)
    assert assignment.hand_over(generation, []) == Delivery(Fetched(generation=generation, records=[]), 2)


# A dataset that leaves and comes back, while the group takes its partition or gives it


@pytest.fixture
def member() -> GroupMember:
    return GroupMember(KafkaSettings(bootstrap_servers=("kafka:9092",)), "group", "name")


def added(member: GroupMember) -> Share:
    share = Share(member, STAGED, "t", deliver=lambda _: None)
    member.add(share)
    return share


def test_a_dataset_that_comes_back_has_the_partition_at_once(member: GroupMember, consumer: Consumer) -> None:
    first = added(member)
    member.given(consumer, [STAGED])
    member.remove(first)
    second = added(member)
    member._begin_what_came(consumer)
    assert (first.assignment.owned, second.assignment.owned) == (False, True)
    member._begin_what_came(consumer)
    assert second.assignment.generation == 1


def test_a_dataset_that_comes_back_has_no_partition_that_the_group_took_meanwhile(
    member: GroupMember, consumer: Consumer
) -> None:
    first = added(member)
    member.given(consumer, [STAGED])
    member.remove(first)
    second = added(member)
    member.taken([STAGED], lost=False)
    member._begin_what_came(consumer)
    assert not first.assignment.owned
    assert not second.assignment.owned
    member.given(consumer, [STAGED])
    assert second.assignment.owned


def test_a_dataset_that_comes_back_has_the_partition_that_nobody_here_had_served(
    member: GroupMember, consumer: Consumer
) -> None:
    member.given(consumer, [STAGED])
    share = added(member)
    member._begin_what_came(consumer)
    assert share.assignment.owned
