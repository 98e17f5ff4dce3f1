"""Cases in buckets and containers: the outcome, the version and what pylance reads are those of local files.

Here one case for each kind of table and operation, on S3 with and without DynamoDB, and on two clouds.
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


def sample() -> list[str]:
    """All cases, or the first of each kind of table and operation."""
    if CHOSEN:
        return cases.names()
    first: dict[tuple[str, str], str] = {}
    for name in cases.names():
        _, table, *_, operation = Path(name).name.split("-")
        first.setdefault((table, operation.partition("_")[0]), name)
    return sorted(first.values())


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=MARKS.get(kind, ())) for kind in ([CHOSEN] if CHOSEN else ["s3", "s3+ddb", *CLOUDS])
    ],
)
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
@pytest.mark.parametrize("name", sample())
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
