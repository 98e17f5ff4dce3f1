"""Random rounds: several changes staged at random versions, committed as versions of several members, and one by one.

Both tables must hold the same rows, row ids and indices, and refuse the same changes. Then pylance commits one more
operation, which it began before them, to each: its verdict on versions of several members must not be laxer.
`LANCE_LOG=error python -m tests.conformance.rounds --first 0 --count 500` runs many.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import anyio
from prometheus_client import CollectorRegistry

from committerd.committer.assembling import Assembler
from committerd.committer.containing import Containment
from committerd.committer.deciding import DecideOptions, Decider
from committerd.committer.decoding import Decoder
from committerd.committer.intake import Intake
from committerd.committer.loading import Loading, load
from committerd.committer.prefetching import Prefetcher
from committerd.lance.operations.permissions import ANYTHING
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import status_of
from committerd.queue.port import Queue, Record, TopicIdentity
from committerd.queue.position import start_of
from committerd.queue.rounds import part_of
from committerd.stores.port import Created
from committerd.table.case import Sources
from committerd.table.versions import Table
from committerd.table.writing import put, write_files
from committerd.telemetry import Metrics
from committerd_common.messages import Member, Refusal, Transaction
from tests.conformance.commit import commit_alone, open_store
from tests.conformance.facts import latest_facts, manifests
from tests.conformance.histories import Pylance, Pylances, comparable, outcome_of, pylances, stage
from tests.conformance.operations import random_shape, random_step

MEMBERS = (
    "append",
    "delete_row",
    "delete_two",
    "delete_fragment",
    "update_row",
    "update_indexed",
    "update_many",
    "upsert",
    "insert_missing",
    "replace_by_source",
    "set_config",
)
MEETING = (
    "delete_row",
    "delete_two",
    "update_row",
    "upsert",
    "insert_missing",
    "rewrite_column",
    "replace_data",
    "create_index",
    "optimize_indices",
    "compact",
    "overwrite",
    "add_column",
    "append",
)
_STRICTNESS = {"committed": 0, "retryable": 1, "incompatible": 2, "error": 2}


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one seed."""

    said: str
    shared: int
    """Members of the largest version."""
    refused: int
    met: str
    """pylance's verdict on the versions of several members, and on those of one."""
    differences: tuple[str, ...]


async def run(seed: int, folder: Path, versions: Pylances) -> Round | None:
    """Run one seed; None if no table can be made, or no changes of it."""
    rng = random.Random(seed)
    root = folder / "table"
    old = versions.old if versions.old is not None and rng.random() < 0.35 else None
    writer = old or versions.new
    shape = random_shape(rng, old=old is not None)
    if writer.make(root, shape) is not None:
        return None
    for _ in range(rng.randrange(1, 4)):
        writer.run(root, random_step(rng))
    latest = max(manifests(root))
    staged, names = list[Transaction](), list[str]()
    for number in range(rng.randint(2, 5)):
        step, read = random_step(rng, MEMBERS), rng.randrange(max(1, latest - 2), latest + 1)
        place = folder / f"staged{number}"
        made = stage(writer, root, read, step, place)
        if len(made) == 1 and part_of(made[0]) is not None:
            staged, names = [*staged, *made], [*names, f"{step.name}@{read}"]
    if not staged:
        return None
    # The order in which their parts are committed.
    staged.sort(key=lambda one: part_of(one) or 0)
    together, apart = (_with_staged_files(root, folder, name) for name in ("together", "apart"))
    ours, shared = await by_round(together, staged)
    theirs = [await _alone(apart, one) for one in staged]
    meeting, read = random_step(rng, MEETING), rng.randrange(max(1, latest - 2), latest + 1)
    said = f"{names} on {latest} of {shape}, met by {meeting.name}@{read} of {'4.0.0' if old else '14.0.2'}"
    found = [f"refused: {ours} together, {theirs} apart"] if ours != theirs else []
    if not found:
        # If all are refused, one table has a version of refusals, in which reuse entries are applied to indices.
        found += differences(together, apart, latest, versions) if shared else read_alike(together, apart, versions)
    verdicts = [outcome_of(writer.run(one, meeting, read)) for one in (together, apart)]
    if _STRICTNESS[verdicts[0]] < _STRICTNESS[verdicts[1]]:
        found.append(f"pylance says {verdicts[0]} to all together, {verdicts[1]} to each")
    if verdicts == ["committed"] * 2 and not found:
        found += [f"after {meeting.name}: {one}" for one in read_alike(together, apart, versions)]
    refused = sum(one != "COMMITTED" for one in ours)
    return Round(said, shared, refused, " / ".join(verdicts), tuple(found))


def _with_staged_files(root: Path, folder: Path, name: str) -> Path:
    copied = Path(shutil.copytree(root, folder / name))
    for place in folder.glob("staged*"):
        for part in ("data", "_deletions", "_indices"):
            if (place / part).exists():
                shutil.copytree(place / part, copied / part, dirs_exist_ok=True)
    return copied


async def by_round(root: Path, staged: Sequence[Transaction]) -> tuple[list[str], int]:
    """Commit these as the committer does; return the status of each, and the most members of one version."""
    status, shared = dict[int, str](), 0
    async for version in committed_by_round(root, staged):
        status |= {at: status_of(one).value for at, one in version.entries.items()}
        shared = max(shared, len(version.members))
    return [status[at] for at in range(len(staged))], shared


@dataclass(frozen=True, slots=True)
class InRound:
    """A version that the committer has made of some records of a round."""

    version: int
    members: Mapping[int, Member]
    """Those that it commits, in order, by their place in what was staged."""
    refusals: Mapping[int, Refusal]

    @property
    def entries(self) -> Mapping[int, Member | Refusal]:
        """Members and refusals."""
        return {**self.members, **self.refusals}


async def committed_by_round(
    root: Path, staged: Sequence[Transaction], *, rng: random.Random | None = None
) -> AsyncIterator[InRound]:
    """Commit these as the committer does that finds all of them waiting; yields each version when it is there."""
    table, telemetry = Table(open_store(str(root))), Metrics(CollectorRegistry()).of("events")
    options = DecideOptions(allowed=ANYTHING)
    decider = Decider(
        options=options,
        sources=Sources(
            wall_clock=lambda: datetime.now(UTC),
            random=rng or random.Random(0),
            new_uuid=uuid.uuid4,
        ),
        containment=Containment(telemetry),
    )
    loaded = await load(table, Loading(monotonic=anyio.current_time))
    position = loaded.position or start_of(TopicIdentity(cluster_id="c", topic="t", topic_id="i"), 0)
    first = position.next_offset
    intake = Intake(cast(Queue, None))
    intake._take(
        [
            Record(
                offset=offset,
                timestamp_ms=int(datetime.now(UTC).timestamp() * 1000),
                leader_epoch=0,
                key=None,
                value=one.SerializeToString(),
                headers=(),
            )
            for offset, one in enumerate(staged, start=first)
        ]
    )
    prefetcher = Prefetcher(
        intake=intake,
        decoder=Decoder(),
        table=table,
        file_limits=options.file_limits,
        verifies=options.verifies,
        wall_clock=lambda: datetime.now(UTC),
    )
    assembler = Assembler(decider=decider, prefetcher=prefetcher, telemetry=telemetry, open_store=open_store)
    head, round_left = loaded.head(position), frozenset[int]()
    while True:
        draft = await assembler.assemble(head, intake, round_left=round_left)
        if draft is None:
            return
        await write_files(table, draft.prepared)
        assert isinstance(await put(table, draft.prepared), Created)
        head, round_left = draft.after.created(), frozenset(draft.round_left)
        yield InRound(
            draft.own.settled.version,
            {one.offset - first: one for one in draft.own.settled.members},
            {one.offset - first: one for one in draft.own.settled.refusals},
        )


async def _alone(root: Path, staged: Transaction) -> str:
    answer = await commit_alone(root, staged)
    return answer.status.value if isinstance(answer, Refused) else "COMMITTED"


def differences(together: Path, apart: Path, latest: int, versions: Pylances) -> Iterator[str]:
    """The differences between both tables. What the changes made counts as one version."""
    facts = [_as_one(comparable(latest_facts(root)), latest + 1) for root in (together, apart)]
    for key, value in facts[0].items():
        if value != facts[1][key]:
            yield f"{key}: together {value}, apart {facts[1][key]}"
    yield from read_alike(together, apart, versions)


def _as_one(facts: dict[str, Any], version: int) -> dict[str, Any]:
    for fragment in facts["fragments"]:
        for name in ("created_at", "last_updated_at"):
            if fragment[name] is not None:
                fragment[name] = [min(one, version) for one in fragment[name]]
    facts["table_metadata"] = {
        key: value for key, value in facts.get("table_metadata", {}).items() if not key.startswith("committerd.")
    }
    return facts


def read_alike(together: Path, apart: Path, versions: Pylances) -> Iterator[str]:
    """The differences between what both versions of pylance read, also through the indices."""
    for one in filter(None, (versions.new, versions.old)):
        yield from _read_alike(one, together, apart)


def _read_alike(by: Pylance, together: Path, apart: Path) -> Iterator[str]:
    ours, theirs = by.read(together), by.read(apart)
    for key in ("error", "rows", "hash", "schema"):
        if ours.get(key) != theirs.get(key):
            yield f"{key}: together {ours.get(key)}, apart {theirs.get(key)}"
    asked = {one.partition(" finds ")[0] for one in theirs.get("lookups", ())}
    yield from (one for one in ours.get("lookups", ()) if one.partition(" finds ")[0] not in asked)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="how many seeds")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    versions = pylances()
    failed, sizes, met = [], dict[int, int](), dict[str, int]()
    for seed in range(arguments.first, arguments.first + arguments.count):
        with tempfile.TemporaryDirectory() as folder:
            found = anyio.run(run, seed, Path(folder), versions)
        if found is None:
            continue
        sizes[found.shared] = sizes.get(found.shared, 0) + 1
        met[found.met] = met.get(found.met, 0) + 1
        if found.differences:
            failed.append(seed)
            print(f"seed {seed}: {found.said}", *found.differences, sep="\n    ", flush=True)
    versions.close()
    print(f"{arguments.count} seeds, {len(failed)} differ: {failed}; largest versions {sizes}; verdicts {met}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
