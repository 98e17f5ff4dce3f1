"""What maintenance leaves alone, for how long, and when it tries again."""

from __future__ import annotations

from pathlib import Path

import pytest

from committerd.maintenance.left_alone import LEFT_ALONE, FailedWork, Failure, decode, read_failed
from committerd.maintenance.report import figures
from committerd.stores.local import LocalStore
from tests.maintenance.scene import HOUR_MS

NONE = FailedWork("14.0.2")
DAY_MS = 24 * HOUR_MS


def failed(work: FailedWork, *fragments: int, now_ms: int = 0, proved: bool = True, index: str = "") -> FailedWork:
    return work.after_failure(fragments=fragments, index=index, why="because", proved=proved, now_ms=now_ms)


def alone(work: FailedWork, now_ms: int) -> set[int | str]:
    left = work.left_alone(now_ms)
    return {id for one in left for id in one.fragments} | {one.index for one in left if one.index}


def test_what_is_proved_is_left_alone_for_longer_and_longer() -> None:
    work, now_ms = NONE, 0
    for hours in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 720, 720):
        work = failed(work, 1, 2, now_ms=now_ms)
        assert alone(work, now_ms + hours * HOUR_MS - 1) == {1, 2}
        now_ms += hours * HOUR_MS
        assert alone(work, now_ms) == set()
    assert work.entries[0].times == 12


def test_what_may_have_another_reason_is_left_alone_after_the_third_time() -> None:
    work = failed(failed(NONE, 1, proved=False), 1, proved=False)
    assert alone(work, 0) == set()
    assert alone(failed(work, 1, proved=False), HOUR_MS - 1) == {1}


def test_a_failure_of_other_fragments_keeps_the_rest_of_an_entry() -> None:
    work = failed(failed(NONE, 1, 2, 3), 3, 4, now_ms=HOUR_MS)
    assert [(one.fragments, one.times) for one in work.entries] == [((1, 2), 1), ((3, 4), 2)]
    assert alone(work, HOUR_MS) == {3, 4}


def test_an_index_is_left_alone_until_it_succeeds() -> None:
    work = failed(failed(NONE, 1), index="a")
    assert alone(failed(work, index="b"), 0) == {1, "a", "b"}
    assert alone(work.after_success(index="a"), 0) == {1}
    assert alone(work.after_success(fragments=[1]), 0) == {"a"}
    assert failed(work, index="a").entries[-1].times == 2


def test_what_the_table_no_longer_has_is_forgotten() -> None:
    work = failed(failed(failed(NONE, 1, 2), 3), index="a")
    assert alone(work.among(fragments=[2, 5], indices=["a"]), 0) == {2, "a"}
    assert alone(work.among(fragments=[], indices=[]), 0) == set()


def test_another_pylance_tries_again_at_once() -> None:
    body = failed(NONE, 1).encode()
    assert decode(body, pylance="14.0.2") == failed(NONE, 1)
    assert decode(body) == failed(NONE, 1), "for people"
    assert decode(body, pylance="15.0.0") == FailedWork("15.0.0")


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"",
        b"[]",
        b"{}",
        b'{"entries": [1]}',
        b'{"entries": [{"why": 1}]}',
        b'{"pylance": "14.0.2", "entries": [{"fragments": [1], "why": "x", "until_ms": NaN}]}',
        b'{"pylance": "14.0.2", "entries": [{"fragments": ["1"], "why": "x", "until_ms": 1}]}',
        b'{"pylance": "14.0.2", "entries": [{"fragments": [1], "why": ["x"], "until_ms": 1}]}',
        b"\xff",
    ],
)
def test_what_is_damaged_says_nothing(body: bytes | None) -> None:
    assert decode(body, pylance="14.0.2") == NONE


def test_what_is_nested_too_deeply_says_nothing() -> None:
    assert decode(b"[" * 200_000, pylance="14.0.2") == NONE
    assert figures(b"[" * 200_000) is None


async def test_an_object_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, durable=False)
    assert await read_failed(store) == FailedWork("")
    await store.put(LEFT_ALONE, failed(NONE, 1).encode())
    assert (await read_failed(store)).entries == (Failure(fragments=(1,), why="because", until_ms=HOUR_MS),)
    path = tmp_path / LEFT_ALONE
    path.unlink()
    path.symlink_to("/dev/zero")
    assert await read_failed(store) == FailedWork("")
