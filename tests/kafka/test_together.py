"""Questions that come at the same time are asked together, and each gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import anyio
import pytest
from anyio import CapacityLimiter, from_thread
from kafka import errors

from committerd.errors import CommitterError, QueueUnavailable
from committerd.kafka.together import Together
from committerd.parts import Parts

BAD, ODD, ALONE, BROKEN = "bad", "odd", "alone", "broken"


class Asked:
    """Kafka: it says of each item its length. It hangs until `answer`."""

    def __init__(self) -> None:
        self.requests: list[Sequence[str]] = []
        self.is_silent = False
        self._answer = threading.Event()
        self.first = anyio.Event()
        """Set by the first request."""
        self.failed: list[str] = []
        self.together = Together[str, int](
            one=self.one, many=self.many, lane=CapacityLimiter(2), parts=Parts(self.failed.append)
        )

    def one(self, item: str) -> int:
        return self._asked([item])[item]

    def many(self, items: Sequence[str]) -> Mapping[str, int]:
        return {item: length for item, length in self._asked(items).items() if item != ALONE}

    def answer(self) -> None:
        self._answer.set()

    def _asked(self, items: Sequence[str]) -> Mapping[str, int]:
        self.requests.append(list(items))
        from_thread.run_sync(self.first.set)
        assert self._answer.wait(60)
        if self.is_silent:
            raise QueueUnavailable("no response") from errors.KafkaTimeoutError()
        if BAD in items:
            raise QueueUnavailable("no rights") from errors.TopicAuthorizationFailedError()
        if ODD in items:
            raise QueueUnavailable("no leader")  # the client's own error, about one of them
        if BROKEN in items and len(items) > 1:
            raise AssertionError("nobody expects this")
        return {item: len(item) for item in items}


async def ask_all(asked: Asked, items: Sequence[str]) -> dict[str, int | CommitterError]:
    """Ask about the first item, and then about the others while its request is under way."""
    found: dict[str, int | CommitterError] = {}

    async def ask(item: str) -> None:
        try:
            found[item] = await asked.together.of(item)
        except CommitterError as error:
            found[item] = error

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, items[0])
        await asked.first.wait()
        for item in items[1:]:
            tasks.start_soon(ask, item)
        await anyio.wait_all_tasks_blocked()
        asked.answer()
    return found


async def test_what_comes_meanwhile_goes_into_the_next_request() -> None:
    asked = Asked()
    assert await ask_all(asked, ["a", "bb", "ccc"]) == {"a": 1, "bb": 2, "ccc": 3}
    assert asked.requests == [["a"], ["bb", "ccc"]]


async def test_what_a_request_leaves_out_is_asked_about_alone() -> None:
    asked = Asked()
    assert await ask_all(asked, ["a", "bb", ALONE]) == {"a": 1, "bb": 2, ALONE: 5}
    assert asked.requests == [["a"], ["bb", ALONE], [ALONE]]


@pytest.mark.parametrize("wrong", [BAD, ODD])
async def test_an_error_about_one_is_no_error_of_the_others(wrong: str) -> None:
    asked = Asked()
    found = await ask_all(asked, ["a", "bb", wrong, "ccc"])
    assert isinstance(found.pop(wrong), QueueUnavailable)
    assert found == {"a": 1, "bb": 2, "ccc": 3}


async def test_an_unexpected_error_about_some_is_told_and_each_is_asked_about_alone() -> None:
    asked = Asked()
    assert await ask_all(asked, ["a", "bb", BROKEN]) == {"a": 1, "bb": 2, BROKEN: 6}
    assert asked.failed == ["questions"]


async def test_while_kafka_is_silent_all_fail_with_one_request() -> None:
    asked = Asked()
    asked.is_silent = True
    found = await ask_all(asked, ["a", "bb", "ccc"])
    assert all(isinstance(found[item], QueueUnavailable) for item in ("a", "bb", "ccc"))
    assert asked.requests == [["a"], ["bb", "ccc"]]


@pytest.mark.parametrize("goes", ["a", "bb"])
async def test_who_is_cancelled_takes_no_answer_from_the_others(goes: str) -> None:
    asked, found = Asked(), dict[str, int]()
    scopes = {item: anyio.CancelScope() for item in ("a", "bb", "ccc")}

    async def ask(item: str) -> None:
        with scopes[item]:
            found[item] = await asked.together.of(item)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, "a")
        await asked.first.wait()
        tasks.start_soon(ask, "bb")
        tasks.start_soon(ask, "ccc")
        await anyio.wait_all_tasks_blocked()
        scopes[goes].cancel()
        await anyio.wait_all_tasks_blocked()
        asked.answer()
    assert found == {item: len(item) for item in scopes if item != goes}
