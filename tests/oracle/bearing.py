"""Transactions that say something wrong, held against both versions of pylance: what is committed, both can read."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from committerd.lance.format.manifest_file import decode
from committerd_common.messages import Transaction
from tests.conformance.facts import manifests
from tests.oracle import looking, native, wrong
from tests.oracle.samples import Sample
from tests.oracle.scenario import commit_staged


@dataclass(slots=True)
class Report:
    """What came of it."""

    codes: Counter[str] = field(default_factory=Counter)
    """How often each reason was given, and `committed`."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How often each kind of statement was wrong."""
    faults: dict[int, str] = field(default_factory=dict)
    """By seed, what a reader can't bear."""


@dataclass(frozen=True, slots=True)
class _Tried:
    seed: int
    name: str
    right: Path
    """The table with the transaction as it was, as far as it is committed."""
    wrong: Path
    """The table with the wrong transaction."""


def run(seeds: Iterable[int], samples: Sequence[Sample], folder: Path, pythons: Sequence[str]) -> Report:
    """Commit a wrong transaction for each seed, and look at what was committed with each of these Pythons' pylance.

    What a reader fails on with the right transaction too is not counted.
    """
    report, tried = Report(), list[_Tried]()
    for seed in seeds:
        rng = random.Random(seed)
        one = anyio.run(_try, seed, rng.choice(samples), folder / str(seed), rng, report)
        if one is not None:
            tried.append(one)
    for python in pythons:
        right, made = (_look(python, roots) for roots in ([one.right for one in tried], [one.wrong for one in tried]))
        for one, before, after in zip(tried, right, made, strict=True):
            if after and not before:
                report.faults[one.seed] = f"{one.name}, read by {python}: {after}"
    return report


async def _try(seed: int, sample: Sample, folder: Path, rng: random.Random, report: Report) -> _Tried | None:
    found = manifests(sample.root)
    if not found:
        return None
    staged = Transaction.FromString(sample.staged)
    kind = wrong.change(staged, decode(found[max(found)].read_bytes()).manifest, rng)
    if not kind:
        return None
    tables = [native.link_tree(sample.root, folder / name) for name in ("right", "wrong")]
    await commit_staged(tables[0], sample.staged)
    outcome = await commit_staged(tables[1], staged.SerializeToString())
    report.codes[outcome.reason or outcome.verdict] += 1
    report.kinds[kind] += 1
    return _Tried(seed, f"{sample.name}, {kind}", *tables) if outcome.verdict == "committed" else None


def _look(python: str, roots: Sequence[Path]) -> Iterator[list[str]]:
    command = [python, looking.__file__, *map(str, roots)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800).stdout
    return map(json.loads, told.splitlines())


CURRENT = sys.executable
"""The Python whose pylance is the newest that is supported."""
