"""The main job: many producers, one committer, a table that every pylance reads, while pylance commits to it too."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from committerd_common.messages import Outcome, Status
from harness.scene import STAYS, Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow]

_ROOT = Path(__file__).resolve().parents[2]
_PRODUCERS = 8
_EACH = 125


def _has_more_than(ids: set[int], count: int) -> bool:
    return len(ids) > count


def test_eight_producers_at_once_have_each_row_committed_once(scene: Scene) -> None:
    first_ids = scene.table.create()
    scene.started()
    children = []
    for _ in range(_PRODUCERS):
        ids = scene.table.new_ids(_EACH)
        children.append(
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.e2e.producer"),
                    *(scene.topics.servers, scene.name, scene.table.uri, str(ids[0]), str(_EACH)),
                ],
                cwd=_ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        said = [child.communicate(timeout=300)[0] for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    results = [result for out in said for result in json.loads(out)]
    assert len(results) == _PRODUCERS * _EACH
    assert {status for _, _, status, _ in results} == {"COMMITTED"}
    staged = [number for _, number, _, _ in results]
    evidence = scene.audit([*first_ids, *staged])
    assert sorted(scene.table.ids_in_4()) == sorted(evidence.ids)
    assert len({o.uuid for o in evidence.outcomes}) == _PRODUCERS * _EACH
    # Each outcome has its producer's name, and Appends that waited together share a version.
    assert {o.producer for o in evidence.outcomes} == {f"producer-{1 + n * _EACH}" for n in range(_PRODUCERS)}
    assert len(evidence.versions) < _PRODUCERS * _EACH


def test_pylance_commits_to_the_same_table_meanwhile(scene: Scene) -> None:
    ids = set(scene.table.create(10))
    daemon = scene.started(**STAYS, COMMIT__GROUP_RECORDS_MAX="5")  # a new start counts no foreign versions
    foreign: set[int] = set()
    stop = threading.Event()

    def write_and_delete() -> None:
        while not stop.is_set():
            written = scene.table.write(2)
            scene.table.open().delete(f"id = {written[0]}")
            foreign.add(written[1])

    # Both threads make ids: those of the queue come first.
    transactions = scene.table.appends(200)
    other = threading.Thread(target=write_and_delete)
    other.start()
    try:
        answers: list[Outcome] = []
        for start in range(0, len(transactions), 10):
            answers += scene.topics.wait_answers(scene.stage(*transactions[start : start + 10]))
            until(partial(_has_more_than, foreign, len(foreign)), seconds=60)
    finally:
        stop.set()
        other.join()
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    queued = {i for t in transactions for i in scene.table.brought[t.uuid]}
    evidence = scene.audit(ids | foreign | queued)
    assert sorted(scene.table.ids_in_4()) == sorted(evidence.ids)
    # They really took turns: a foreign version after nearly each batch of ours, and the reverse.
    assert sum(one.ours is not other.ours for one, other in pairwise(evidence.versions)) > 20
    by_others = sum(not version.ours for version in evidence.versions[1:])
    until(lambda: daemon.metric("committerd_foreign_commits_total") == by_others)
    # Commit order is offset order.
    order = [m.offset for version in evidence.versions for m in version.members]
    assert order == sorted(order)
