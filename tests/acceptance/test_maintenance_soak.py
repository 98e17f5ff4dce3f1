"""What the soak of maintenance expects of a table, and how it counts: it must notice what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

from committerd_common.messages import Transaction
from tests.acceptance.maintenance_soak.cheap_staging import CheapStager, Delete, Upsert
from tests.acceptance.maintenance_soak.expected import Expected
from tests.acceptance.maintenance_soak.figures import Sample, Targets
from tests.acceptance.maintenance_soak.reader import Reader
from tests.acceptance.maintenance_soak.table import STORAGE, columns_of, rows, wrong_rows
from tests.acceptance.maintenance_soak.usage import Usage
from tests.producers.direct_commit import commit


def expected(values: dict[int, int]) -> Expected:
    made = Expected()
    for id_, value in values.items():
        made.put(id_, value)
    return made


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        ({1: 0, 3: 7, 200_000: 5}, []),
        ({200_000: 5, 3: 7, 1: 0}, []),
        ({1: 0, 3: 7}, ["1 rows are lost, [200000] among them"]),
        ({1: 0, 2: 0, 3: 7, 200_000: 5}, ["1 rows are too many, [2] among them"]),
        ({1: 0, 3: 8, 200_000: 5}, ["1 rows have another value, [3] among them"]),
    ],
)
def test_differences_of_rows_are_found(found: dict[int, int], problems: list[str]) -> None:
    wanted = expected({1: 0, 2: 0, 3: 7, 200_000: 5})
    wanted.remove(2)
    assert [wanted.has(id_) for id_ in (1, 2, 3, 200_000, 300_000)] == [True, False, True, True, False]
    assert wanted.differences(np.array([*found]), np.array([*found.values()])) == problems


def test_a_row_that_is_there_twice_is_found() -> None:
    found = expected({1: 0}).differences(np.array([1, 1]), np.array([0, 0]))
    assert found == ["1 rows are there twice, [1] among them"]


def test_what_is_expected_can_be_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "expected.npy"
    expected({3: 4}).save(path)
    assert [one.tolist() for one in Expected.load(path).rows()] == [[3], [4]]


def test_a_vector_that_is_not_that_of_its_row_is_found() -> None:
    table = rows({1: 5, 2: 6, 3: 7})
    assert wrong_rows(table) == []
    other = table.set_column(1, "value", [[5, 9, 7]])
    assert wrong_rows(other) == [2]


def sample(second: float, version: int, **given: int) -> Sample:
    figures: dict[str, Any] = {"fragments": 1, "versions": 1, "bytes": 1, "live_bytes": 1, "new_bytes": 1}
    return Sample(second=second, version=version, **figures | given)


def test_the_worst_moment_is_found_with_its_second() -> None:
    targets = Targets(fragments=10, hour_seconds=2, keep_versions=5, cleanup_seconds=1)
    samples = [sample(0, 1, fragments=90), sample(5, 11, fragments=5, versions=30), sample(9, 21, fragments=15)]
    worst = targets.worst(samples, after=3)
    assert worst["fragments"] == (1.5, 9)
    assert worst["versions"] == (2.0, 5)
    assert targets.worst(samples, after=100)["bytes"] == (0, 0)


def test_the_time_of_this_process_is_counted() -> None:
    usage = Usage()
    before = usage.look()["the rest"]
    while usage.look()["the rest"] < before + 0.05:
        pass
    assert usage.memory["the rest"] > 1 << 20


@pytest.mark.pylance
async def test_cheap_changes_do_what_those_of_pylance_do(tmp_path: Path) -> None:
    uri = str(tmp_path / "table.lance")
    lance.write_dataset(rows(dict.fromkeys(range(50), 0)), uri, data_storage_version=STORAGE)
    stager = CheapStager(uri)
    made: list[Transaction] = stager.appends({100: 0, 101: 0})
    made += stager.changes([Upsert(old=3, new=102, value=9), Delete(old=4), Delete(old=5)])
    for transaction in made:
        await commit(uri, transaction)
    for transaction in stager.changes([Upsert(old=101, new=103, value=8), Delete(old=100)]):
        await commit(uri, transaction)
    table = lance.dataset(uri).to_table()
    ids, values, _ = columns_of(table)
    wanted = dict.fromkeys(range(50), 0) | {3: 9, 102: 9, 101: 8, 103: 8}
    wanted = {id_: value for id_, value in wanted.items() if id_ not in (4, 5, 100)}
    assert expected(wanted).differences(ids, values) == []
    assert wrong_rows(table) == []
    with pytest.raises(AssertionError, match="has \\[\\] for \\[4\\]"):
        stager.changes([Delete(old=4)])


@pytest.mark.pylance
def test_the_reader_finds_rows_that_are_wrong_twice_or_not_found(tmp_path: Path) -> None:
    uri = str(tmp_path / "table.lance")
    whole = rows(dict.fromkeys(range(300), 0))
    dataset = lance.write_dataset(whole, uri, data_storage_version=STORAGE)
    dataset.create_scalar_index("id", "BTREE")
    lance.dataset(uri).create_index("vector", "IVF_FLAT", num_partitions=2)
    reader = Reader(uri, keep_seconds=100, seed=1)
    reader.round()
    assert (reader.read.problems, reader.read.reads, reader.read.whole, reader.read.queries) == ([], 1, 1, 4)
    lance.dataset(uri).update({"value": "1"}, "id = 7")
    lance.write_dataset(rows({9: 0}), uri, mode="append")
    other = Reader(uri, keep_seconds=100, seed=1)
    other.round()
    said = " ".join(other.read.problems)
    assert "has 1 rows twice" in said
    assert "the vectors of rows [7] are not those of their values" in said
