"""Random histories: the same operation, staged at a random version, committed once by pylance and once by us.

`LANCE_LOG=error python -m tests.conformance.histories --first 0 --count 500` runs many; a seed that fails is printed,
and repeats it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import lance
import pyarrow as pa

from committerd.format.manifest_file import decode, encode
from committerd.format.messages import Manifest, Transaction
from committerd.prepare import Prepared, Rejected
from committerd.rules.conflicts import Verdict
from tests.conformance import reader
from tests.conformance.commit import commit_alone
from tests.conformance.facts import latest_facts, manifests

ROWS = 5
"""Of a fragment."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What chance gives an operation to work on."""

    row: int
    other: int
    value: int
    key: str
    column: str
    data: pa.Table


@dataclass(frozen=True, slots=True)
class Step:
    """One operation; it does the same wherever it is run."""

    name: str
    draw: Draw

    def run(self, dataset: Any) -> None:
        OPERATIONS[self.name](dataset, self.draw)


def rows(rng: random.Random, count: int) -> pa.Table:
    first = rng.randrange(100, 1_000_000)
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "a": pa.array([rng.randrange(9) for _ in range(count)], pa.int64()),
            "b": pa.array([f"s{rng.randrange(9)}" for _ in range(count)], pa.string()),
            "c": pa.array([rng.choice([None, 1, 2]) for _ in range(count)], pa.int64()),
        }
    )


def make_table(root: Path, rng: random.Random) -> None:
    """Three fragments, perhaps with stable row ids and an index."""
    for number in range(3):
        data = rows(rng, ROWS).set_column(0, "id", pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()))
        mode = "append" if number else "create"
        lance.write_dataset(
            data, root, mode=mode, data_storage_version="2.0", enable_stable_row_ids=number == 0 and rng.random() < 0.4
        )
    if rng.random() < 0.5:
        lance.dataset(root).create_scalar_index("a", "BTREE")


def steps(rng: random.Random) -> Iterator[Step]:
    """Operations without end."""
    while True:
        draw = Draw(
            row=rng.randrange(3 * ROWS),
            other=rng.randrange(3 * ROWS),
            value=rng.randrange(1000),
            key=rng.choice(["k0", "k1", "k2"]),
            column=rng.choice(["a", "b", "c"]),
            data=rows(rng, 1 + rng.randrange(3)),
        )
        yield Step(rng.choice(list(OPERATIONS)), draw)


def append(dataset: Any, draw: Draw) -> None:
    lance.write_dataset(draw.data, dataset, mode="append", data_storage_version="2.0")


def overwrite(dataset: Any, draw: Draw) -> None:
    lance.write_dataset(draw.data, dataset, mode="overwrite")


def delete_row(dataset: Any, draw: Draw) -> None:
    dataset.delete(f"id = {draw.row}", conflict_retries=0)


def delete_two(dataset: Any, draw: Draw) -> None:
    dataset.delete(f"id in ({draw.row}, {draw.other})", conflict_retries=0)


def delete_fragment(dataset: Any, draw: Draw) -> None:
    first = draw.row // ROWS * ROWS
    dataset.delete(f"id >= {first} and id < {first + ROWS}", conflict_retries=0)


def update_row(dataset: Any, draw: Draw) -> None:
    dataset.update({"c": str(draw.value)}, f"id = {draw.row}", conflict_retries=0)


def update_indexed(dataset: Any, draw: Draw) -> None:
    dataset.update({"a": str(draw.value)}, f"id = {draw.row}", conflict_retries=0)


def upsert(dataset: Any, draw: Draw) -> None:
    """Change one row, insert others."""
    changed = draw.data.slice(0, 1).set_column(0, "id", pa.array([draw.row], pa.int64()))
    builder = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    builder.conflict_retries(0).execute(pa.concat_tables([changed, draw.data.slice(1)]))


def create_index(dataset: Any, draw: Draw) -> None:
    dataset.create_scalar_index(draw.column, "BTREE", name=f"{draw.column}_idx")


def drop_index(dataset: Any, draw: Draw) -> None:
    dataset.drop_index(f"{draw.column}_idx")


def add_column(dataset: Any, draw: Draw) -> None:
    dataset.add_columns({f"n{draw.value}": "a + 1"})


def add_nulls(dataset: Any, draw: Draw) -> None:
    dataset.add_columns(pa.field(f"z{draw.value}", pa.int64()))


def drop_column(dataset: Any, draw: Draw) -> None:
    dataset.drop_columns(["c"])


def rename_column(dataset: Any, draw: Draw) -> None:
    dataset.alter_columns({"path": "b", "name": f"b{draw.value}"})


def set_config(dataset: Any, draw: Draw) -> None:
    dataset.update_config({draw.key: str(draw.value)})


def drop_config(dataset: Any, draw: Draw) -> None:
    dataset.update_config({draw.key: None})


def table_metadata(dataset: Any, draw: Draw) -> None:
    dataset.update_metadata({draw.key: str(draw.value)})


def schema_metadata(dataset: Any, draw: Draw) -> None:
    dataset.update_schema_metadata({draw.key: str(draw.value)})


def field_metadata(dataset: Any, draw: Draw) -> None:
    dataset.update_field_metadata({draw.column: {"m": str(draw.value)}})


def compact(dataset: Any, draw: Draw) -> None:
    dataset.optimize.compact_files(target_rows_per_fragment=2 * ROWS)


OPERATIONS: dict[str, Callable[[Any, Draw], None]] = {
    operation.__name__: operation
    for operation in (
        append,
        overwrite,
        delete_row,
        delete_two,
        delete_fragment,
        update_row,
        update_indexed,
        upsert,
        create_index,
        drop_index,
        add_column,
        add_nulls,
        drop_column,
        rename_column,
        set_config,
        drop_config,
        table_metadata,
        schema_metadata,
        field_metadata,
        compact,
    )
}


def outcome_of(error: Exception) -> str:
    text = str(error)
    if any(word in text for word in ("Please retry", "preempted", "Too many concurrent", "Retryable")):
        return "retryable"
    return "incompatible" if "ncompatible" in text or "was dropped by" in text else "error"


@dataclass(frozen=True, slots=True)
class Compared:
    """What both made of one operation."""

    seed: int
    said: str
    ours: str
    theirs: str
    differences: tuple[str, ...] = ()


async def run(seed: int, folder: Path) -> Compared | None:
    """One history and one operation on it; None when the operation can't be made at its version."""
    rng = random.Random(seed)
    root = folder / "table"
    make_table(root, rng)
    history, more = [], steps(rng)
    for _ in range(rng.randrange(1, 4)):
        step = next(more)
        try:
            step.run(lance.dataset(root))
        except Exception:  # noqa: BLE001 - a column that is no longer there and the like: another step, then
            continue
        history.append(step.name)
    latest = max(manifests(root))
    read = rng.randrange(max(1, latest - 3), latest + 1)
    ours = next(more)
    said = f"{ours.name} at version {read} of {latest}, over {history}"
    staged = stage(root, read, ours, folder / "staged")
    if not staged:
        return None
    theirs = by_pylance(Path(shutil.copytree(root, folder / "theirs")), read, ours)
    copied = Path(shutil.copytree(root, folder / "ours"))
    before = latest_facts(root)
    for part in ("data", "_deletions", "_indices"):
        if (folder / "staged" / part).exists():
            shutil.copytree(folder / "staged" / part, copied / part, dirs_exist_ok=True)
    mine, first = await by_us(copied, staged)
    if mine != theirs and not (theirs == "error" and mine in ("invalid", "incompatible")) and first != theirs:
        return Compared(seed, said, mine, theirs, (f"{mine} (at the first conflict: {first}), not {theirs}",))
    if mine != "committed" or theirs != "committed":
        return Compared(seed, said, mine, theirs)
    found = differences(copied, folder / "theirs")
    if ours.name in ("drop_column", "rename_column"):
        # pylance carries a schema's metadata along in memory, and so undoes what was set since its read version. The
        # transaction does not say any, so what the table has stays.
        found = (one for one in found if not one.startswith("schema_metadata"))
        if latest_facts(copied)["schema_metadata"] != before["schema_metadata"]:
            return Compared(seed, said, mine, theirs, ("schema metadata is lost",))
    return Compared(seed, said, mine, theirs, tuple(found))


def stage(root: Path, read: int, step: Step, folder: Path) -> list[Transaction]:
    """The transactions that the operation makes on a copy that ends at its read version; empty when it can't."""
    shutil.copytree(root, folder)
    found = manifests(folder)
    latest = decode(found[max(found)].read_bytes()).manifest
    for version, path in found.items():
        if version > read:
            path.unlink()
    # A compaction reserves ids before it begins; those it gets here are the ones that it will get from the table.
    file = decode(found[read].read_bytes())
    ahead = Manifest()
    ahead.CopyFrom(file.manifest)
    ahead.max_fragment_id = latest.max_fragment_id
    assert file.transaction is not None
    found[read].write_bytes(encode(ahead, file.indices, file.transaction))
    (folder / "_versions" / "latest_version_hint.json").unlink(missing_ok=True)
    try:
        step.run(lance.dataset(folder))
    except Exception:  # noqa: BLE001 - as in `run`
        return []
    made = sorted((version, path) for version, path in manifests(folder).items() if version > read)
    files = [decode(path.read_bytes()) for _, path in made]
    return [file.transaction for file in files if file.transaction is not None]


def by_pylance(root: Path, read: int, step: Step) -> str:
    try:
        step.run(lance.dataset(root, version=read))
    except Exception as error:  # noqa: BLE001 - pylance raises OSError, ValueError and its own
        return outcome_of(error)
    return "committed"


async def by_us(root: Path, staged: list[Transaction]) -> tuple[str, str]:
    """The outcome, and that of the earliest conflict alone: pylance stops there."""
    answer: Prepared | Rejected | None = None
    for transaction in staged:
        answer = await commit_alone(root, transaction)
        if isinstance(answer, Rejected):
            break
    assert answer is not None
    if isinstance(answer, Prepared):
        return "committed", "committed"
    conflicts = [one.verdict for one in answer.found.checked if one.verdict >= Verdict.RETRYABLE]
    mine = answer.status.value.lower()
    return mine, conflicts[0].name.lower() if conflicts else mine


def differences(ours: Path, theirs: Path) -> Iterator[str]:
    """What differs between the versions that both made, names of files and indices left out."""
    mine, others = (comparable(latest_facts(root)) for root in (ours, theirs))
    for key in mine:
        if mine[key] != others[key]:
            yield f"{key}: ours {mine[key]}, theirs {others[key]}"
    read = [reader.read(str(root)) for root in (ours, theirs)]
    for name in ("rows", "hash", "schema"):
        if read[0][name] != read[1][name]:
            yield f"{name}: ours {read[0][name]}, theirs {read[1][name]}"
    yield from reader.lookups(str(ours))


def comparable(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts that are the same wherever an operation is run."""
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
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    failed, outcomes = [], {"committed": 0, "other": 0, "none": 0}
    for seed in range(arguments.first, arguments.first + arguments.count):
        with tempfile.TemporaryDirectory() as folder:
            compared = anyio.run(run, seed, Path(folder))
        outcomes["none" if compared is None else compared.ours if compared.ours == "committed" else "other"] += 1
        if compared is not None and compared.differences:
            failed.append(seed)
            print(f"seed {seed}: {compared.said}", *compared.differences, sep="\n    ")
    print(f"{arguments.count} seeds, {len(failed)} differ: {failed}; {outcomes}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
