"""Turns to write."""

from __future__ import annotations

import asyncio

import pytest

from committerd_ingest.turn import Turn


async def test_a_turn_that_is_given_back_is_for_others_until_the_end_of_the_block() -> None:
    turns = asyncio.Semaphore(1)
    mine, other = Turn(turns), Turn(turns)
    async with mine:
        assert turns.locked()
        async with mine.given_back():
            async with other:
                assert turns.locked()
            assert not turns.locked()
        assert turns.locked()
    assert not turns.locked()


async def test_who_is_cancelled_while_it_waits_for_its_turn_again_gives_no_second_one_back() -> None:
    turns, waits = asyncio.Semaphore(1), asyncio.Event()

    async def write() -> None:
        turn = Turn(turns)
        async with turn, turn.given_back():
            await turns.acquire()  # somebody else has it now
            waits.set()

    writing = asyncio.create_task(write())
    await waits.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    turns.release()
    async with Turn(turns):
        assert turns.locked()
