"""The audit's file works like a dictionary in memory, and is gone afterwards."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from committerd.audit import spill as module
from committerd.audit.history import EntriesInMemory, Entry, NumbersInMemory
from committerd.audit.spill import Spill
from committerd.errors import CommitterError
from committerd_common.messages import Status as StatusNumber


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def spill(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spill]:
    monkeypatch.setattr(module, "_WRITTEN_AT_ONCE", 7)
    with Spill() as made:
        assert len(list(folder.iterdir())) == 1
        yield made
    assert list(folder.iterdir()) == []


def test_entries_are_those_that_memory_keeps(spill: Spill) -> None:
    rng, known, kept = random.Random(1), EntriesInMemory(), spill.entries
    for number in range(500):
        topic, offset = rng.choice(("a", "b")), rng.randrange(60)
        if rng.random() < 0.5:
            entry = Entry(
                at=number,
                era=rng.randrange(3),
                status=rng.choice((StatusNumber.COMMITTED, StatusNumber.INVALID)),
                version=2**40 + number,
                reason=rng.choice(("", "schema")),
                uuid=f"u{number}",
            )
            known.put(topic, offset, entry)
            kept.put(topic, offset, entry)
        assert kept.get(topic, offset) == known.get(topic, offset)
        if number % 50 == 0:
            assert kept.count_below(topic, offset) == known.count_below(topic, offset)
    assert kept.get("unknown", 1) is None


def test_numbers_are_those_that_memory_keeps(spill: Spill) -> None:
    rng = random.Random(2)
    uuids, told = NumbersInMemory[str](), NumbersInMemory[int]()
    for number in range(500):
        key = rng.randrange(60)
        if rng.random() < 0.5:
            said = rng.choice((0, -(2**63), 2**63 - 1))
            uuids.put(str(key), number)
            spill.uuids.put(str(key), number)
            told.put(key, said)
            spill.outcome_numbers.put(key, said)
        assert spill.uuids.get(str(key)) == uuids.get(str(key))
        assert spill.outcome_numbers.get(key) == told.get(key)


def test_where_no_file_can_be_made_it_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "nowhere"))
    with pytest.raises(CommitterError, match="Set TMPDIR to a folder"):
        Spill()
