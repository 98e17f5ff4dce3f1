"""Cases in buckets and containers: the outcome, the version and what pylance reads are those of local files.

On S3 one case for each kind of table and operation; with DynamoDB and on two clouds one for each operation, with every
kind of table among them, because there only the store differs, and `tests/contracts` tests that.
COMMITTERD_CONFORMANCE_STORE (`s3`, `s3+ddb`, `azure`, `gcs`) runs all of them there: `make conformance STORE=s3`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import cases
from tests.conformance.clouds import CloudRunner
from tests.conformance.facts import manifests
from tests.conformance.stores import StoreRunner
from tests.conformance.test_conformance import answers_of, is_answer, reads_as_expected

CLOUDS = ("azure", "gcs")
MARKS = {"s3+ddb": pytest.mark.dynamodb, "azure": pytest.mark.azure, "gcs": pytest.mark.gcs}
CHOSEN = os.environ.get("COMMITTERD_CONFORMANCE_STORE")

pytestmark = [pytest.mark.pylance, pytest.mark.s3]


def of_each_kind() -> dict[tuple[str, str], str]:
    """The first case of each kind of table and operation."""
    first: dict[tuple[str, str], str] = {}
    for name in cases.names():
        _, table, *_, operation = Path(name).name.split("-")
        first.setdefault((table, operation.partition("_")[0]), name)
    return first


def sample(kind: str) -> list[str]:
    """The cases that run on a store of this kind."""
    if CHOSEN:
        return cases.names()
    names = of_each_kind()
    if kind == "s3":
        return sorted(names.values())
    tables, operations, taken = set[str](), set[str](), list[str]()
    # First what brings both a kind of table and an operation that are not there yet, then the operations that are left.
    for both in (True, False):
        for (table, operation), name in names.items():
            if operation not in operations and not (both and table in tables):
                tables.add(table)
                operations.add(operation)
                taken.append(name)
    return sorted(taken)


def test_every_store_has_each_operation_and_each_kind_of_table() -> None:
    kinds = {name: kind for kind, name in of_each_kind().items()}
    if not CHOSEN:
        assert len({kinds[name] for name in sample("s3")}) == len(kinds) == 60
        few = [kinds[name] for name in sample("gcs")]
        assert {operation for _, operation in few} == {operation for _, operation in kinds.values()}
        assert {table for table, _ in few} == {table for table, _ in kinds.values()}
        assert len(few) == 27


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest) -> Iterator[StoreRunner]:
    if request.param in CLOUDS:
        with CloudRunner(request.getfixturevalue(request.param)) as on_cloud:
            yield on_cloud
        return
    s3 = request.getfixturevalue("s3")
    dynamodb = request.getfixturevalue("dynamodb") if request.param == "s3+ddb" else None
    with StoreRunner(s3, dynamodb) as made:
        yield made


@pytest.mark.usefixtures("mounted")
@pytest.mark.parametrize(
    ("runner", "name"),
    [
        pytest.param(kind, name, marks=MARKS.get(kind, ()), id=f"{kind}-{name}")
        for kind in ([CHOSEN] if CHOSEN else ["s3", "s3+ddb", *CLOUDS])
        for name in sample(kind)
    ],
    indirect=["runner"],
)
def test_case_on_a_store(name: str, runner: StoreRunner, tmp_path: Path) -> None:
    case = cases.load(name)
    root = case.copy_table(tmp_path)
    before = manifests(root)
    outcome, uri = runner.commit(root, case.staged, case.commit_options)
    answer = next((one for one in answers_of(name, case) if is_answer(name, one, outcome, root)), None)
    assert answer is not None, f"{outcome}, wanted {[one['outcome'] for one in answers_of(name, case)]}"
    assert len(manifests(root)) == len(before) + (outcome == "committed")
    if outcome == "committed":
        wanted = (answer.get("result") or {}).get("reads") or {}
        # Opening a bucket takes pylance longer than all the rest: for all cases only the downloaded table is read.
        place = (str(root), {}) if CHOSEN else (uri, runner.storage_options)
        reads_as_expected(place[0], wanted, place[1])
