"""Checks that the data files of an Append are in its version, each exactly once."""

from __future__ import annotations

import random

import pytest

from committerd.audit.files import HeldFiles
from committerd.errors import CorruptTable
from committerd.lance.format import fragment_list
from committerd_common.messages import DataFile, DataFragment, Manifest, Transaction


def fragment(*paths: str, base: int | None = None) -> DataFragment:
    return DataFragment(files=[DataFile(path=path, base_id=base) for path in paths])


def append(*fragments: DataFragment) -> Transaction:
    return Transaction(append=Transaction.Append(fragments=fragments))


def wire(*fragments: DataFragment) -> bytes:
    return Manifest(fragments=fragments).SerializeToString()


BROUGHT = (fragment("a", "b"), fragment("c", base=1))
X = fragment("x")
DELETE = Transaction(delete=Transaction.Delete())


@pytest.mark.parametrize("before", [wire(), wire(X), wire(fragment("y"))], ids=["first", "follows", "does not"])
def test_each_file_is_to_be_there_once(before: bytes) -> None:
    def misplaced(*fragments: DataFragment) -> tuple[str, ...]:
        held = HeldFiles()
        held.misplaced(DELETE, before)
        return held.misplaced(append(*BROUGHT), wire(*fragments))

    assert misplaced(X, *BROUGHT) == ()
    assert misplaced(X, *BROUGHT, fragment("a")) == ("a",)
    assert misplaced(X, fragment("a"), fragment("c")) == ("b", "c")


def test_what_was_there_before_counts() -> None:
    for made_by in (append(fragment("x"), *BROUGHT), DELETE, None, Transaction(uuid="x")):
        held = HeldFiles()
        assert held.misplaced(made_by, wire(X, *BROUGHT)) == ()
        assert held.misplaced(append(fragment("a")), wire(X, *BROUGHT, fragment("a"))) == ("a",)
        assert held.misplaced(append(fragment("z")), wire(X, *BROUGHT, fragment("a"), fragment("z"))) == ()


def test_what_is_gone_does_not() -> None:
    held = HeldFiles()
    assert held.misplaced(append(X, *BROUGHT), wire(X, *BROUGHT)) == ()
    assert held.misplaced(DELETE, wire(X)) == ()
    assert held.misplaced(DELETE, wire(X, fragment("z"))) == ()
    assert held.misplaced(append(*BROUGHT), wire(X, fragment("z"), *BROUGHT)) == ()


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_counting_all_files_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_list, "_DECODED_AT_ONCE", 3)
    rng, held, there = random.Random(seed), HeldFiles(), list[DataFragment]()
    found = 0
    for _ in range(60):
        new = [fragment(*rng.sample("abcdefghijklmnopqrstuvwxyz", rng.randint(1, 3))) for _ in range(2)]
        if rng.random() < 0.3:
            there = rng.sample(there, len(there) // 2)
            assert held.misplaced(DELETE, wire(*there)) == ()
            continue
        there = there + new if rng.random() < 0.9 else new + there
        paths = [file.path for one in there for file in one.files]
        wanted = {file.path for one in new for file in one.files if paths.count(file.path) != 1}
        assert held.misplaced(append(*new), wire(*there)) == tuple(sorted(wanted))
        found += bool(wanted)
    assert found


def test_new_fragments_that_are_damaged_are_found() -> None:
    held = HeldFiles()
    held.misplaced(append(X), wire(X))
    with pytest.raises(CorruptTable, match="fragments can't be decoded"):
        held.misplaced(DELETE, wire(X) + b"\x12\x02\xff\xff")
