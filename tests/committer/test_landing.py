"""The commit protocol, step by step: the store's results, and what is done next."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from committerd.errors import PutUnknown, StoreUnavailable, Unavailable
from committerd.table.backoff import Backoff
from committerd.table.landing import land

TAKEN = None
Answer = str | None | PutUnknown | StoreUnavailable
LOST, DOWN = PutUnknown("lost"), StoreUnavailable("down")


class Script:
    """A landing with scripted results."""

    def __init__(self, puts: Sequence[Answer], reads: Sequence[str | None], *, gives_up: bool = False) -> None:
        self.puts, self.reads = list(puts), list(reads)
        self.gives_up = gives_up
        self.steps: list[str] = []

    async def put(self) -> str | None:
        self.steps.append("put")
        answer = self.puts.pop(0)
        if isinstance(answer, PutUnknown | StoreUnavailable):
            raise answer
        return answer

    async def read_back(self, *, taken: bool) -> str | None:
        self.steps.append("read back what is there" if taken else "read back")
        return self.reads.pop(0)

    def failed(self, error: PutUnknown | Unavailable, *, may_be_there: bool) -> None:
        if self.gives_up and not may_be_there:
            raise error


@pytest.mark.parametrize(
    ("puts", "reads", "steps"),
    [
        (["ours"], [], ["put"]),
        ([TAKEN], ["theirs"], ["put", "read back what is there"]),
        ([LOST], ["theirs"], ["put", "read back"]),
        ([LOST, "ours"], [None], ["put", "read back", "put"]),
        ([LOST, TAKEN], [None, "ours"], ["put", "read back", "put", "read back what is there"]),
        ([DOWN, "ours"], [], ["put", "put"]),
        (
            [LOST, DOWN, DOWN, TAKEN],
            [None, "ours"],
            ["put", "read back", "put", "put", "put", "read back what is there"],
        ),
    ],
)
async def test_it_ends_when_it_is_known_whose_the_number_is(
    puts: Sequence[Answer], reads: Sequence[str], steps: Sequence[str]
) -> None:
    script = Script(puts, reads)
    assert await land(script, Backoff(random.Random(0))) in ("ours", "theirs")
    assert script.steps == steps
    assert not script.puts
    assert not script.reads


async def test_who_gives_up_does_so_before_anything_can_have_landed() -> None:
    with pytest.raises(StoreUnavailable):
        await land(Script([DOWN], [], gives_up=True), Backoff(random.Random(0)))


@pytest.mark.parametrize("first", [LOST, TAKEN])
async def test_nobody_gives_up_once_it_may_be_there(first: Answer) -> None:
    """A number that is taken may be taken by our own put, whose response was lost."""
    script = Script([first, DOWN, TAKEN], [None, "ours"], gives_up=True)
    assert await land(script, Backoff(random.Random(0))) == "ours"
