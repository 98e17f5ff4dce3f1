"""Real tables with a real staged transaction each: one conformance case for every staged change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from committerd_common.messages import Transaction
from tests.conformance import cases
from tests.lance import samples
from tests.lance.operations import create_index

VERSION = "14.0.2"


@dataclass(frozen=True, slots=True)
class Sample:
    """A table and a transaction."""

    name: str
    root: Path
    staged: bytes


def unpack(folder: Path) -> list[Sample]:
    """Copy, of the cases with one staged change, the one with the most versions since its read version."""
    chosen: dict[str, str] = {}
    for name in cases.names():
        change = name.rpartition("-")[2]
        if name.startswith(VERSION) and len(name) > len(chosen.get(change, "")):
            chosen[change] = name
    loaded = {name: cases.load(name) for name in sorted(chosen.values())}
    found = [Sample(name, case.copy_table(folder / name), case.staged) for name, case in loaded.items()]
    return [*found, *_by_hand(next(one for one in found if one.name.count("-") > 3))]


def _by_hand(other: Sample) -> Iterator[Sample]:
    """What pylance stages, but not through its Python interface."""
    read_version = Transaction.FromString(other.staged).read_version
    generation = samples.generation(1, 5)
    for name, transaction in {
        "mem_wal_index": create_index(samples.mem_wal_index(1, generation)),
        "reuse_index": create_index(samples.reuse_index(1, ([0], [1]))),
        "mem_wal_state": Transaction(
            update_mem_wal_state=Transaction.UpdateMemWalState(merged_generations=[generation])
        ),
        "update_with_generation": Transaction(update=Transaction.Update(merged_generations=[generation])),
    }.items():
        transaction.read_version, transaction.uuid = read_version, samples.TRANSACTION_UUID
        yield Sample(name, other.root, transaction.SerializeToString())
