"""Every case: the same outcome, the same version, and a table that both versions of pylance read."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from committerd.lance.format.feature_flags import FeatureFlag
from committerd.table.prepare import Prepared
from committerd_common.request import decode_transaction
from harness.lance_table import old_python
from tests.conformance import cases, reader
from tests.conformance.cases import Case
from tests.conformance.commit import commit_alone
from tests.conformance.facts import in_order, latest_facts, manifests

pytestmark = pytest.mark.pylance


AS_14: dict[str, dict[tuple[str | int, ...], Any]] = {
    # 4.0.0 lets an index cover a column that was rewritten after it was built: a lookup in the result misses rows.
    "4.0.0/pair-main-mi_cols_u1-idx_c_btree": {("indices", 1, "fragment_bitmap"): [1, 2, 3, 4]},
}
"""Where we do what 14.0.2 does, though only the answer of 4.0.0 is recorded; and the facts that differ by that."""
PARTLY_COVERED = frozenset(
    f"{version}/pair-main-{case}"
    for version in ("4.0.0", "14.0.2")
    for case in ("rewrite_01-idx_id_btree", "rewrite_23-idx_c_btree")
)
"""A new index over a compaction of some of its fragments: pylance retries, committerd keeps the rest
(`indexed_fragment_rewritten`).
"""

CAST_MEANWHILE = frozenset(
    f"{version}/pair-main-cast_c-{case}" for version in ("4.0.0", "14.0.2") for case in ("idx_c_btree", "append_1")
)
"""A column was cast meanwhile, and has a new id. pylance commits a new index on it, and then no filter works; and an
Append of it, which has nulls there from then on.
"""


class Oldest:
    """A process with pylance 4.0.0, which reads tables."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, str(Path(reader.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"LANCE_LOG": "error"},
        )

    def read(self, root: Path, before: int | None) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"root": str(root), "before": before}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def oldest() -> Iterator[Oldest | None]:
    if not Path(old_python()).exists():
        yield None
        return
    process = Oldest(old_python())
    yield process
    process.close()


async def commit(root: Path, staged: bytes, options: Mapping[str, Any]) -> str:
    """Commit a staged transaction to the table; returns the outcome."""
    answer = await commit_alone(root, decode_transaction(staged, bytes_max=2**31), options)
    if isinstance(answer, Prepared):
        return "committed"
    assert answer.reason
    assert answer.message
    return answer.status.value.lower()


def is_outcome(wanted: str, found: str) -> bool:
    # pylance has no word for a transaction that can't be right; it raises an error of no class.
    return found == wanted or (wanted == "error" and found in ("invalid", "incompatible"))


def answers_of(name: str, case: Case) -> Sequence[Mapping[str, Any]]:
    """The recorded answers, or what committerd does on purpose."""
    if name in CAST_MEANWHILE:
        return [{"outcome": "retryable"}]
    return [{"outcome": "committed", "result": {"reads": {"ok": True}}}] if name in PARTLY_COVERED else case.answers


def is_answer(name: str, wanted: Mapping[str, Any], found: str, root: Path) -> bool:
    """Whether the outcome and, for a commit, the version are those of an answer."""
    if not is_outcome(wanted["outcome"], found):
        return False
    if found != "committed" or "facts" not in (wanted.get("result") or {}):
        return True
    facts = without_soft(wanted["result"]["facts"])
    facts["indices"] = in_order(facts["indices"])
    for path, value in AS_14.get(name, {}).items():
        place: Any = facts
        for step in path[:-1]:
            place = place[step]
        assert place[path[-1]] != value
        place[path[-1]] = value
    return bool(facts == latest_facts(root))


def without_soft(value: Any) -> Any:
    """Facts without those that may differ, whose names begin with an underscore, and without the transaction."""
    if isinstance(value, dict):
        kept = {key: without_soft(one) for key, one in value.items() if not key.startswith("_")}
        kept.pop("transaction", None)
        return kept
    return [without_soft(one) for one in value] if isinstance(value, list) else value


@pytest.mark.usefixtures("mounted")
@pytest.mark.parametrize("name", cases.names())
async def test_case(name: str, oldest: Oldest | None, tmp_path: Path) -> None:
    case = cases.load(name)
    root = case.copy_table(tmp_path)
    before = manifests(root)
    outcome = await commit(root, case.staged, case.commit_options)
    answer = next((one for one in answers_of(name, case) if is_answer(name, one, outcome, root)), None)
    assert answer is not None, f"{outcome}, wanted {[one['outcome'] for one in answers_of(name, case)]}"
    after = manifests(root)
    assert len(after) == len(before) + (outcome == "committed")
    if outcome == "committed":
        found = reads_as_expected(str(root), (answer.get("result") or {}).get("reads") or {})
        reads_in_4(root, found, oldest, max(before, default=None))


def reads_as_expected(
    root: str, wanted: Mapping[str, Any], storage_options: dict[str, str] | None = None
) -> Mapping[str, Any]:
    """Check what this pylance reads; returns it."""
    found = reader.read(root, storage_options)
    expected = wanted.get("latest") or {}
    assert {key: found.get(key) for key in ("rows", "hash", "schema", "rowid_hash") if key in expected} == {
        key: expected[key] for key in ("rows", "hash", "schema", "rowid_hash") if key in expected
    }
    if wanted.get("ok"):
        assert not reader.lookups(root, storage_options)
    return found


def reads_in_4(root: Path, wanted: Mapping[str, Any], oldest: Oldest | None, before: int | None) -> None:
    """Check that pylance 4.0.0 reads the `wanted` rows, and compares the version with its own commit."""
    flags = latest_facts(root)["reader_feature_flags"]
    if oldest is None or flags >= FeatureFlag.DATA_OVERLAYS:
        return
    found = oldest.read(root, before)
    assert "error" not in found, found["error"]
    assert (found["rows"], found["hash"]) == (wanted["rows"], wanted["hash"])


def test_pylance_4_takes_part(oldest: Oldest | None) -> None:
    if oldest is None:
        pytest.skip("no pylance 4.0.0: `make setup` makes its environment, or name its Python in COMMITTERD_PYLANCE_4")


def test_there_are_cases_of_both_versions() -> None:
    found = [Path(name).parts[0] for name in cases.names()]
    assert (found.count("4.0.0"), found.count("14.0.2")) == (307, 311)


def test_every_case_of_the_archive_is_tried() -> None:
    assert cases.names() == cases.archived()
