"""Random histories: the same operation, staged at a random version, committed once by pylance and once by us.

`LANCE_LOG=error python -m tests.conformance.histories --first 0 --count 500` runs many; it prints a seed that fails,
and that seed repeats the failure. The tables are made by pylance 4.0.0 or 14.0.2, some by both in turn; a change that
4.0.0 staged may have the result of either. Both read every result, with and without its indices.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio

from committerd.lance.conflicts.grid import Verdict
from committerd.lance.format.feature_flags import FeatureFlag
from committerd.lance.format.manifest_file import decode, encode
from committerd.queue.dedupe import Refused
from committerd.table.prepare import Prepared
from committerd_common.messages import Manifest, Transaction
from harness.lance_table import old_python
from tests.conformance import operations, reader
from tests.conformance.commit import commit_alone
from tests.conformance.facts import latest_facts, manifests
from tests.conformance.operations import Step, random_shape, random_step


class Pylance:
    """One version of pylance: makes, changes and reads tables."""

    def __init__(self, python: str | None = None) -> None:
        """The version of this process, or that of another Python."""
        self._python = python
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def make(self, root: Path, shape: operations.Shape) -> str | None:
        """Make a table; returns the error if it can't be made."""
        return self._ask(operations, {"root": str(root), "shape": asdict(shape)}).get("error")

    def run(self, root: Path, step: Step, version: int | None = None) -> str | None:
        """Perform a step; returns the error if it can't be done at this version."""
        return self._ask(operations, {"root": str(root), "step": asdict(step), "version": version}).get("error")

    def read(self, root: Path) -> dict[str, Any]:
        """Return what a reader sees, and wrong results of indices."""
        return self._ask(reader, {"root": str(root), "lookups": True})

    def _ask(self, part: Any, request: dict[str, Any]) -> dict[str, Any]:
        if self._python is None:
            answered: dict[str, Any] = part.run(request)
            return answered
        process = self._processes.get(part.__name__)
        if process is None or process.poll() is not None:
            process = self._processes[part.__name__] = subprocess.Popen(
                [self._python, str(Path(part.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"LANCE_LOG": "error"},
            )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        said: dict[str, Any] = json.loads(process.stdout.readline() or '{"error": "the process ended"}')
        return said

    def close(self) -> None:
        for process in self._processes.values():
            process.communicate()


@dataclass(frozen=True, slots=True)
class Pylances:
    """The versions that take part."""

    new: Pylance
    old: Pylance | None

    def close(self) -> None:
        for one in (self.new, self.old):
            if one is not None:
                one.close()


def pylances() -> Pylances:
    """14.0.2, and 4.0.0 if its environment is there."""
    return Pylances(Pylance(), Pylance(old_python()) if Path(old_python()).exists() else None)


def outcome_of(error: str | None) -> str:
    if error is None:
        return "committed"
    if any(word in error for word in ("Please retry", "preempted", "Too many concurrent", "Retryable")):
        return "retryable"
    return "incompatible" if "ncompatible" in error or "was dropped by" in error else "error"


@dataclass(frozen=True, slots=True)
class Compared:
    """The results of both sides for one operation."""

    seed: int
    said: str
    ours: str
    theirs: str
    differences: tuple[str, ...] = ()
    wrong_in_pylance: tuple[str, ...] = ()
    """Queries with wrong results on pylance's own table too."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a commit, and what both versions read of the table."""

    outcome: str
    error: str
    facts: dict[str, Any] = field(default_factory=dict)
    read: tuple[dict[str, Any], ...] = ()
    note: str = ""
    """What committerd says of rows that it followed, or of an index of which a part is left."""


async def run(seed: int, folder: Path, versions: Pylances, only: tuple[str, ...] = ()) -> Compared | None:
    """Run one history and one operation on it, of `only` if given; None if it can't be made at its version."""
    rng = random.Random(seed)
    root = folder / "table"
    old = versions.old if versions.old is not None and rng.random() < 0.35 else None
    writer = old or versions.new
    mixed = versions.old is not None and rng.random() < 0.15
    shape = random_shape(rng, old=old is not None)
    if writer.make(root, shape) is not None:
        return None
    history = []
    for _ in range(rng.randrange(1, 5)):
        step = random_step(rng)
        by = rng.choice([versions.new, versions.old or versions.new]) if mixed else writer
        # A column no longer exists, or similar: take another step.
        if by.run(root, step) is None:
            history.append(described(step) + ("" if by is writer else " (by the other pylance)"))
    latest = max(manifests(root))
    read = rng.randrange(max(1, latest - 3), latest + 1)
    ours = random_step(rng, only or CAN_BE_STAGED)
    if ours.name in READ_THE_LATEST:
        read = latest
    made = f"4.0.0 {shape}" if old else f"14.0.2 {shape}"
    said = f"{described(ours)} at version {read} of {latest}, over {history}, by {made}"
    staged = stage(writer, root, read, ours, folder / "staged")
    if not staged:
        return None
    theirs = by_pylance(writer, root, read, ours, folder / "theirs", versions)
    copied = Path(shutil.copytree(root, folder / "ours"))
    for part in ("data", "_deletions", "_indices"):
        if (folder / "staged" / part).exists():
            shutil.copytree(folder / "staged" / part, copied / part, dirs_exist_ok=True)
    before = latest_facts(root)
    mine, first = await by_us(copied, staged, versions)
    found = tuple(differences(mine, first, theirs, before=before, step=ours))
    if found and versions.old is not None and (old is not None or mixed):
        # A table of 4.0.0 may have the result of 14.0.2, and one that both write may have either.
        second = versions.new if old is not None else versions.old
        other = without_lineage(by_pylance(second, root, read, ours, folder / "other", versions))
        # Where they differ, our verdict is the stricter one.
        as_strict = mine.outcome != "committed" and (other.outcome != "committed" or mixed)
        if as_strict or not any(differences(without_lineage(mine), first, other, before=before, step=ours)):
            found = ()
    known = tuple(
        f"read by {version}: {one}"
        for version, answer in zip(("14.0.2", "4.0.0"), theirs.read, strict=False)
        for one in [*answer.get("lookups", ()), *([answer["error"]] if "error" in answer else [])]
    )
    return Compared(seed, said, mine.outcome, theirs.outcome, found, known)


def described(step: Step) -> str:
    more = {
        "create_index": f" {step.kind} {step.value} train={step.train}",
        "drop_indexed": f" {step.column}",
        "upsert_columns": f" {step.column}",
    }
    return f"{step.name}{more.get(step.name, '')}"


def stage(writer: Pylance, root: Path, read: int, step: Step, folder: Path) -> list[Transaction]:
    """The transactions that the operation makes on a copy that ends at its read version; empty if it can't."""
    shutil.copytree(root, folder)
    found = manifests(folder)
    latest = decode(found[max(found)].read_bytes()).manifest
    for version, path in found.items():
        if version > read:
            path.unlink()
    # A compaction reserves ids before it begins; it gets here those that it will get from the table.
    file = decode(found[read].read_bytes())
    ahead = Manifest()
    ahead.CopyFrom(file.manifest)
    ahead.max_fragment_id = latest.max_fragment_id
    assert file.transaction is not None
    found[read].write_bytes(encode(ahead, file.indices, file.transaction))
    (folder / "_versions" / "latest_version_hint.json").unlink(missing_ok=True)
    if writer.run(folder, step) is not None:
        return []
    made = sorted((version, path) for version, path in manifests(folder).items() if version > read)
    files = [decode(path.read_bytes()) for _, path in made]
    return [file.transaction for file in files if file.transaction is not None]


def by_pylance(writer: Pylance, root: Path, read: int, step: Step, folder: Path, versions: Pylances) -> Result:
    shutil.copytree(root, folder)
    error = writer.run(folder, step, read)
    return result(folder, outcome_of(error), error or "", versions)


async def by_us(root: Path, staged: list[Transaction], versions: Pylances) -> tuple[Result, str]:
    """Return the result, and the outcome of the earliest conflict alone, because pylance stops there."""
    answer: Prepared | Refused | None = None
    for transaction in staged:
        answer = await commit_alone(root, transaction)
        if isinstance(answer, Refused):
            break
    assert answer is not None
    if isinstance(answer, Prepared):
        return replace(result(root, "committed", "", versions), note=answer.judged.note), "committed"
    conflicts = [one.verdict for one in answer.found.checked if one.verdict >= Verdict.RETRYABLE]
    mine = answer.status.value.lower()
    return Result(mine, answer.message), conflicts[0].name.lower() if conflicts else mine


def result(root: Path, outcome: str, error: str, versions: Pylances) -> Result:
    if outcome != "committed":
        return Result(outcome, error)
    read = tuple(one.read(root) for one in (versions.new, versions.old) if one is not None)
    return Result(outcome, error, comparable(latest_facts(root)), read)


_COLUMN_GONE = ("indexed_column_dropped", "indexed_schema_changed", "appended_before_cast")


def differences(mine: Result, first: str, theirs: Result, *, before: Mapping[str, Any], step: Step) -> Iterator[str]:
    """The differences between the versions of both sides, without names of files and indices."""
    if mine.outcome != theirs.outcome or mine.outcome != "committed":
        accepted = (theirs.outcome, *(("invalid",) if theirs.outcome == "error" else ()))
        if mine.outcome in accepted or first in accepted:
            return
        if theirs.outcome == "error" and mine.outcome == "incompatible":
            return
        if is_unreadable(theirs) or "Cannot enable stable row ids" in theirs.error:
            return  # pylance commits what it can't read, or can't commit what it should; we don't
        if mine.outcome == "committed" and step.name in LAXER:
            return
        if any(f"(rule {rule}:" in mine.error for rule in _COLUMN_GONE):
            return  # pylance commits an index or rows for a column that is gone
        if mine.note and theirs.outcome == "retryable":
            # Rows pass a compaction here, and tests/rowlevel compares them with serial execution.
            yield from (str(one["error"]) for one in mine.read if "error" in one)
            return
        yield f"{mine.outcome} {mine.error!r} (at the first conflict: {first}), not {theirs.outcome} {theirs.error!r}"
        return
    # pylance lets an index cover rows that it lacks; we don't.
    right = len(wrong_lookups(mine)) < len(wrong_lookups(theirs))
    for key, value in mine.facts.items():
        if value == theirs.facts[key] or (key == "indices" and (right or narrower(value, theirs.facts[key]))):
            continue
        if key.endswith("feature_flags") and value == theirs.facts[key] | FeatureFlag.STABLE_ROW_IDS:
            continue  # 4.0.0 drops it in a table without fragments
        # pylance carries a schema's metadata in memory, and so undoes what was set since its read version. The
        # transaction does not contain any, so the table's stays.
        if key == "schema_metadata" and step.name in CARRY_METADATA:
            if value != before[key]:
                yield "schema metadata is lost"
        else:
            yield f"{key}: ours {value}, theirs {theirs.facts[key]}"
    for ours, others in zip(mine.read, theirs.read, strict=True):
        for key in ("error", "rows", "hash", "schema", "fragments"):
            if ours.get(key) != others.get(key):
                yield f"{key}: ours {ours.get(key)}, theirs {others.get(key)}"
        asked = {one.partition(" finds ")[0] for one in others.get("lookups", ())}
        wrong = [one for one in ours.get("lookups", ()) if one.partition(" finds ")[0] not in asked]
        yield from (one for one in wrong if not one.endswith(FAILS_IN_4))


CAN_BE_STAGED = tuple(name for name in operations.OPERATIONS if name != "compact_deferred")
"""pylance adds a fragment reuse index to the version that is not in the transaction of a deferred compaction."""
FAILS_IN_4 = "Expected option to have value"
"""4.0.0's error for an inverted index of a nested column that does not cover every fragment."""
LAXER = frozenset({"delete_nothing_of_a_fragment"})
"""docs/conflicts.md says why."""
READ_THE_LATEST = frozenset({"restore", "truncate", "move_rows"})
"""These work on the latest version, whichever version they were called on."""
CARRY_METADATA = frozenset(
    name
    for name in operations.OPERATIONS
    if name.startswith(("drop_", "rename_", "cast_", "forbid_", "allow_", "add_", "merge_"))
)


def narrower(ours: list[Any], theirs: list[Any]) -> bool:
    """Whether the only difference is that zone maps and bloom filters of ours cover less.

    They hold addresses, and 4.0.0 lets them cover rows that moved.
    """
    return len(ours) == len(theirs) and all(
        one == other
        or (one[0].startswith(("zonemap", "bloomfilter")) and one[:2] == other[:2] and set(one[2]) < set(other[2]))
        for one, other in zip(ours, theirs, strict=True)
    )


def wrong_lookups(made: Result) -> list[str]:
    return [one for answer in made.read for one in answer.get("lookups", ())]


def without_lineage(made: Result) -> Result:
    """Without row versions: 4.0.0 mistakes the stable id of an updated row for its address, and stamps other rows."""
    facts = dict(made.facts)
    facts["fragments"] = [
        {key: value for key, value in fragment.items() if key not in ("created_at", "last_updated_at")}
        for fragment in facts.get("fragments", ())
    ]
    return replace(made, facts=facts)


def is_unreadable(made: Result) -> bool:
    """Whether the newest pylance can't read a table, or not through its indices."""
    if not made.read:
        return False
    newest = made.read[0]
    return "error" in newest or any("finds an error" in one for one in newest.get("lookups", ()))


def comparable(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts that are the same wherever an operation runs."""
    kept = {key: value for key, value in facts.items() if key != "version"}
    for fragment in kept["fragments"]:
        for file in fragment["files"]:
            del file["path"], file["size"]
    kept["indices"] = sorted(
        (index["name"], index["fields"], index["fragment_bitmap"], index["index_version"]) for index in kept["indices"]
    )
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="how many seeds")
    parser.add_argument("--only", nargs="*", default=[], help="names of the operations to compare; none = all")
    parser.add_argument("--pylance", action="store_true", help="list also what pylance itself reads wrongly")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    versions = pylances()
    failed, outcomes = [], {"committed": 0, "other": 0, "none": 0}
    for seed in range(arguments.first, arguments.first + arguments.count):
        with tempfile.TemporaryDirectory() as folder:
            compared = anyio.run(run, seed, Path(folder), versions, tuple(arguments.only))
        outcomes["none" if compared is None else compared.ours if compared.ours == "committed" else "other"] += 1
        if compared is None:
            continue
        if compared.differences:
            failed.append(seed)
            print(f"seed {seed}: {compared.said}", *compared.differences, sep="\n    ", flush=True)
        if compared.wrong_in_pylance and arguments.pylance:
            print(
                f"seed {seed}: wrong in pylance: {compared.said}", *compared.wrong_in_pylance, sep="\n    ", flush=True
            )
    versions.close()
    print(f"{arguments.count} seeds, {len(failed)} differ: {failed}; {outcomes}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
