"""One seed: a table and a series of changes, each planned at some version and committed by pylance and by us.

pylance commits in one copy of the table, we commit the same bytes in another. The results must agree, and the next
change continues on either copy: each reads what the other wrote.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance

from committerd.committer.direct import commit
from committerd.errors import CommitterError
from committerd.lance.operations.permissions import ANYTHING, Permissions
from committerd.queue.outcomes import Status
from committerd.stores.local import LocalStore
from committerd.stores.port import ObjectStore
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions, Sources
from committerd.table.versions import Table
from committerd_common.request import decode_transaction
from tests.conformance import reader
from tests.conformance.facts import latest_facts, manifests
from tests.oracle import differences, native, tables
from tests.oracle.changes import CHANGES, append, create_index, delete
from tests.oracle.differences import UNREADABLE, Outcome
from tests.oracle.native import Opened

ROUNDS = 8
_BACK_MAX = 4
"""How many versions before the latest one a change is planned."""


class DisagreementError(AssertionError):
    """pylance and we did not do the same."""


@dataclass(slots=True)
class Report:
    """The events of a seed."""

    seed: int
    lines: list[str] = field(default_factory=list)
    allowed: set[str] = field(default_factory=set)
    """Names of the differences that occurred."""
    cells: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """How often each of our operations met each of theirs, and with which verdict."""

    def __str__(self) -> str:
        return "\n".join(
            [f"seed {self.seed}; again: make oracle SEEDS={self.seed}", *(f"  {line}" for line in self.lines)]
        )


async def run(seed: int, folder: Path, rounds: int = ROUNDS) -> Report:
    """Run the seed. Raises `DisagreementError` with all that happened before it."""
    rng = random.Random(seed)
    report = Report(seed)
    table = tables.create(folder, rng)
    prepare(table, rng)
    for number in range(rounds):
        place = folder / str(number)
        place.mkdir()
        table = await _round(table, place, rng, report)
    return report


def prepare(table: Path, rng: random.Random) -> None:
    """Give the table what it may have from the start: indices, deleted rows, more than one version."""
    for change in rng.choices((create_index, delete, append), k=rng.randint(0, 4)):
        opened = Opened(uri=str(table), dataset=lance.dataset(str(table)), lock=lambda _: nullcontext())
        with suppress(TypeError, ValueError, OSError, RuntimeError):  # impossible with these columns or these rows
            change(opened, rng)


async def _round(table: Path, place: Path, rng: random.Random, report: Report) -> Path:
    latest = max(manifests(table))
    oldest = max(min(manifests(table)), latest - _BACK_MAX)
    read_version = latest if rng.random() < 0.4 else rng.randint(oldest, latest)
    change = rng.choices(list(CHANGES), list(CHANGES.values()))[0]
    # Their names have the same length, because some files of pylance contain the path.
    theirs, ours = native.link_tree(table, place / "pylance"), place / "queued.."
    draw = rng.getrandbits(64)
    made = native.change(theirs, read_version, ours, lambda opened: change(opened, random.Random(draw)))
    line = f"{change.__name__} at version {read_version} of {latest}"
    if not made.staged:
        report.lines.append(f"{line}: nothing was staged: {made.error[:150]}")
        return table
    case = await by_queue(made, theirs=theirs, ours=ours)
    told = ", ".join(f"{outcome.operation} {outcome.verdict}" for outcome in case.outcomes)
    report.lines.append(f"{line}: {told}")
    report.cells.update(cell for outcome in case.outcomes for cell in _cells(outcome))
    met = compare(case, report)
    report.allowed |= met
    return ours if UNREADABLE in met else rng.choice((theirs, ours))


async def by_queue(made: native.Native, *, theirs: Path, ours: Path) -> differences.Case:
    """Commit to `ours` what pylance staged for its change of `theirs`."""
    outcomes = [await commit_staged(ours, staged) for staged in made.staged]
    return differences.Case(theirs=theirs, ours=ours, outcomes=outcomes, verdicts=made.verdicts, error=made.error)


async def commit_staged(root: Path, staged: bytes, allowed: Permissions = ANYTHING) -> Outcome:
    transaction = decode_transaction(staged, bytes_max=2**31)
    sources = Sources(wall_clock=lambda: datetime.now(UTC), random=random.Random(0), new_uuid=uuid.uuid4)
    try:
        answer = await commit(
            Table(open_store(str(root))),
            transaction,
            options=PrepareOptions(allowed=allowed, verify_files=True),
            sources=sources,
            open_store=open_store,
            backoff=Backoff(random.Random(0)),
        )
    except CommitterError as error:
        # It would stop the queue.
        told = f"{type(error).__name__}: {error}"
        return Outcome(transaction=transaction, verdict="raised", reason=error.code, message=told, checked=())
    return Outcome(
        transaction=transaction,
        verdict=_VERDICTS.get(answer.status, "error"),
        reason=answer.reason,
        message=answer.message,
        checked=answer.checked,
    )


def _cells(outcome: Outcome) -> Iterator[tuple[str, str, str]]:
    for one in outcome.checked:
        yield outcome.operation, str(one.theirs), one.verdict.name


_VERDICTS = {
    Status.COMMITTED: "committed",
    Status.RETRYABLE: "retryable",
    Status.INCOMPATIBLE: "incompatible",
}


def open_store(uri: str) -> ObjectStore:
    return LocalStore(Path(uri), durable=False)


def compare(case: differences.Case, report: Report) -> set[str]:
    """Return the names of the differences that occurred. Raises `DisagreementError` for any other difference."""
    found = [outcome.verdict for outcome in case.outcomes]
    if found != case.verdicts:
        name = differences.of_verdicts(case)
        if name is None:
            said = [f"{outcome.reason}: {outcome.message}" for outcome in case.outcomes]
            raise DisagreementError(f"{report}\npylance: {case.verdicts} {case.error}\nwe: {found} {said}")
        return {name}
    if "committed" not in found:
        return set()
    theirs, ours = latest_facts(case.theirs), latest_facts(case.ours)
    met = differences.settle(case, theirs, ours)
    if theirs != ours:
        raise DisagreementError(f"{report}\npylance and we made different versions:\n{_diff(theirs, ours)}")
    for look in (reader.read, reader.lookups):
        read, read_ours = _read(look, case.theirs), _read(look, case.ours)
        if read != read_ours and read_ours != []:
            raise DisagreementError(f"{report}\npylance reads ({look.__name__}) {read}\nof ours {read_ours}")
    return met


def _read(look: Callable[[str], Any], root: Path) -> Any:
    """What pylance reads, or its error: an index on a column that was dropped meanwhile breaks its queries."""
    try:
        return look(str(root))
    except (OSError, ValueError) as error:
        return str(error)


def _diff(theirs: Any, ours: Any, path: str = "") -> str:
    """The places where two versions differ, a line each."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        return "\n".join(_diff(theirs.get(key), ours.get(key), f"{path}/{key}") for key in keys)
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = [(place, *pair) for place, pair in enumerate(zip(theirs, ours, strict=True)) if pair[0] != pair[1]]
        return "\n".join(_diff(one, other, f"{path}/{place}") for place, one, other in pairs)
    return f"  {path}: pylance {theirs!r}, we {ours!r}"
