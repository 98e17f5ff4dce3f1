"""Records that are read again come in parts, however many and large they are."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from committerd.committer.outcome_maker import Entry, OutcomeMaker, read_parts
from committerd.queue.outcomes import Settled
from committerd.queue.port import READ_BYTES_MAX, TopicIdentity
from committerd.queue.position import start_of
from committerd.telemetry import Metrics
from committerd_common.messages import COMMITTED, INVALID, Member, Outcome, Refusal
from tests.simulation.queue import FakeBroker, FakeQueue

LARGE = bytes(READ_BYTES_MAX * 2 // 5)
"""Two of them are read at a time."""


@pytest.fixture
def broker() -> FakeBroker:
    broker = FakeBroker()
    for number in range(8):
        broker.stage(LARGE if number < 6 else b"small")
    return broker


@pytest.mark.parametrize(
    ("offsets", "parts"),
    [
        ([], []),
        ([7], [[7]]),
        (range(8), [[0, 1], [2, 3], [4, 5, 6, 7]]),
        ([0, 2, 5, 6], [[0], [2], [5, 6]]),
        ([5, 8, 9], [[5]]),
        ([8, 9], []),
    ],
)
async def test_each_part_has_no_more_bytes_than_are_read_at_a_time(
    broker: FakeBroker, offsets: list[int], parts: list[list[int]]
) -> None:
    found = [[record.offset for record in part] async for part in read_parts(FakeQueue(broker), offsets)]
    assert found == parts


async def test_outcomes_are_made_again_with_few_dead_letters_at_a_time(broker: FakeBroker) -> None:
    maker = OutcomeMaker(queue=FakeQueue(broker), telemetry=Metrics(CollectorRegistry()).of("events"))
    settled = Settled(version=3, uuid="", operation="", ours=True)
    entries: list[Entry] = [
        (settled, Refusal(offset=offset, status=INVALID, reason="missing_file")) for offset in range(5)
    ]
    entries += [(settled, Member(offset=offset)) for offset in range(5, 10)]
    position = start_of(TopicIdentity(cluster_id="c", topic="t", topic_id="i"), 10)
    batches = [batch async for batch in maker.make_again(entries, position)]
    assert [len(batch.letters) for batch in batches] == [2, 2, 1, 0]
    outcomes = [Outcome.FromString(one.value) for batch in batches for one in batch.outcomes]
    assert [(one.offset, one.status) for one in outcomes] == [(o, INVALID if o < 5 else COMMITTED) for o in range(10)]
