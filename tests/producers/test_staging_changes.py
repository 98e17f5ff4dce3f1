"""Each staged change equals pylance's own commit, and makes the same table."""

from __future__ import annotations

import base64
import json
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import lance
import pytest

from committerd.queue.outcomes import Status
from committerd_common.messages import Transaction
from tests.producers import staging_changes
from tests.producers.direct_commit import commit
from tests.producers.old_pylance import ROOT, old_pylance

NAMES = list(staging_changes.CASES)
MERGES_THAT_INSERT = {name for name in NAMES if name.startswith(("upsert", "insert", "delete what"))}

pytestmark = pytest.mark.pylance


async def check(name: str, told: dict[str, Any]) -> None:
    assert told["texts"][0] == told["texts"][-1]
    ours, theirs = told["keys"][0], told["keys"][-1]
    if name in MERGES_THAT_INSERT:
        assert ours
        assert told["exact"] == 20
        assert theirs in ([], ours)
    else:
        assert not ours
    for staged in told["staged"]:
        answer = await commit(told["ours"], Transaction.FromString(base64.b64decode(staged)))
        assert answer.status is Status.COMMITTED, answer
    same_tables(lance.dataset(told["ours"]), lance.dataset(told["theirs"]))


def same_tables(ours: lance.LanceDataset, theirs: lance.LanceDataset) -> None:
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert in_order(ours) == in_order(theirs)
    assert [one.name for one in ours.describe_indices()] == [one.name for one in theirs.describe_indices()]
    assert ours.config() == theirs.config()
    assert ours.metadata == theirs.metadata


def in_order(dataset: lance.LanceDataset) -> list[dict[str, Any]]:
    """All rows; with their row ids if these are stable."""
    rows: list[dict[str, Any]] = dataset.to_table(with_row_id=dataset.has_stable_row_ids).to_pylist()
    return sorted(rows, key=repr)


@pytest.mark.parametrize("name", NAMES)
async def test_what_is_staged_is_what_pylance_commits(tmp_path: Path, name: str) -> None:
    await check(name, staging_changes.run(name, str(tmp_path)))


@pytest.fixture(scope="module")
def by_pylance_4(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All changes, made once by the oldest pylance."""
    script = ROOT / "tests" / "producers" / "staging_changes.py"
    folder = tmp_path_factory.mktemp("pylance-4")
    command = [old_pylance(), str(script), str(ROOT), sysconfig.get_path("platlib"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.mark.parametrize("name", NAMES)
async def test_what_pylance_4_stages_is_what_it_commits(by_pylance_4: dict[str, Any], name: str) -> None:
    assert by_pylance_4["pylance"] == "4.0.0"
    await check(name, by_pylance_4[name])
