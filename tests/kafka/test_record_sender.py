"""Records that fail, while other records of the dataset are on their way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from kafka import errors

from committerd.errors import QueueUnavailable
from committerd.kafka.producer import Failure, RecordSender
from committerd.queue.port import Publication

_FOR_ALL, _SECOND = "the producer for all", "the second producer"


@pytest.fixture
def sender() -> RecordSender:
    producers: Any = SimpleNamespace(patience_max=60.0, all=_FOR_ALL, suspects=_SECOND, one_suspect=anyio.Lock())
    return RecordSender(producers, topic="t")


async def test_a_refused_record_does_not_come_back_to_the_producer_for_all_because_others_pass(
    sender: RecordSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = Publication(key=None, value=b"bad"), Publication(key=None, value=b"good", partition=1)
    tried = list[tuple[object, bytes]]()

    async def attempt(shared: object, publications: Sequence[Publication]) -> list[Failure]:
        tried.extend((shared, one.value) for one in publications)
        return [(one, errors.MessageSizeTooLargeError()) for one in publications if one is bad]

    monkeypatch.setattr(sender, "_attempt", attempt)
    for _ in range(3):
        with pytest.raises(QueueUnavailable, match="refuses 1 of 1 records"):
            await sender.send([bad])
        await sender.send([good])
    assert tried.count((_FOR_ALL, b"bad")) == 1
    assert tried.count((_SECOND, b"good")) == 3
    sender._refused_at = float("-inf")  # long ago
    await sender.send([good])
    await sender.send([good])
    assert tried[-2:] == [(_SECOND, b"good"), (_FOR_ALL, b"good")]


async def test_batches_wait_for_a_silent_producer_side_by_side_and_not_one_after_the_other(
    sender: RecordSender,
) -> None:
    sender._patience = sender._patience_min = 0.2
    gave_up = list[float]()

    async def wait() -> None:
        unanswered = SimpleNamespace(is_done=False)
        waiting = [(Publication(key=None, value=b""), unanswered)]
        batch: Any = SimpleNamespace(done=anyio.Event(), progress_at=time.monotonic(), waiting=waiting)
        assert len(await sender._undelivered(batch)) == 1
        gave_up.append(sender._patience)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(wait)
    assert gave_up == [0.4] * 4
