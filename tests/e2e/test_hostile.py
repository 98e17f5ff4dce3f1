"""A few hundred hostile records between good ones; `make hostile` stages 20,000."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from committerd_common.messages import DataFragment, Status
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene
from tests.hostile.attack import (
    RSS_BYTES_MAX,
    SETTINGS,
    Seen,
    Watch,
    attack,
    attack_all_operations,
    attack_with_forged_records,
    attack_with_heavy_records,
)
from tests.hostile.bounds import KINDS
from tests.hostile.records import seeds

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def test_hostile_records_keep_no_good_one_from_being_committed(scene: Scene, tmp_path: Path) -> None:
    seen = attack(scene, 300, 3, folder=tmp_path / "samples")
    assert seen.wrong == []
    assert seen.failed == []


def test_hostile_records_of_all_operations_stop_nothing(scene: Scene, tmp_path: Path) -> None:
    seen = attack_all_operations(scene, 300, 4, folder=tmp_path / "samples")
    assert seen.wrong == []
    assert seen.failed == []


def test_forged_records_are_never_committed(scene: Scene, tmp_path: Path) -> None:
    seen = attack_with_forged_records(scene, 400, 5, folder=tmp_path / "samples")
    assert seen.wrong == []
    assert seen.failed == []
    wanted = ("signature_missing", "signature_invalid", "producer_unknown", "header_invalid")
    assert {f"INVALID {one}" for one in wanted} | {"UNSUPPORTED operation_not_allowed"} <= seen.hostile.keys()


@pytest.mark.long
def test_records_that_take_much_memory_take_no_more_one_after_the_other(scene: Scene, tmp_path: Path) -> None:
    seen = attack_with_heavy_records(scene, 40, 6, folder=tmp_path / "samples")
    assert seen.wrong == []
    assert seen.failed == []


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_record_may_cost_is_bounded(
    kind: Callable[[Scene, int], Seen], kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path
) -> None:
    """The committer is a process of its own, and takes no more memory than the chart gives it."""
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path) as scene:
        seen = kind(scene, 8)
    assert seen.wrong == []
    assert seen.rss_bytes < min(RSS_BYTES_MAX, chart_memory_bytes())


def chart_memory_bytes() -> int:
    values = yaml.safe_load(Path(__file__).parents[2].joinpath("helm/committerd/values.yaml").read_text())
    limit: str = values["resources"]["limits"]["memory"]
    number, unit = limit[:-2], limit[-2:]
    return int(number) * {"Mi": 2**20, "Gi": 2**30}[unit]


def test_a_queue_of_hostile_records_is_adopted(scene: Scene) -> None:
    """The operator passes half of them unread, and the committer has to publish UNDECIDED for each."""
    ids = scene.table.create()
    daemon = scene.started(**SETTINGS)
    ids += scene.committed(3)
    scene.topics.recreate_staged()
    daemon.wait_refused("topic_id")
    offsets = [
        offset
        for hostile in seeds(scene.table.append, random.Random(5), read_version=1, there=DataFragment())
        if hostile.is_seed
        for offset in scene.topics.stage(hostile.value, key=hostile.key, headers=hostile.headers)
    ]
    good = scene.table.append()
    offsets += scene.stage(good)
    middle = offsets[len(offsets) // 2]
    dry = json.loads(scene.command("position", "adopt", "--offset", str(middle), "--json"))
    assert dry["skipped"] == middle
    assert f"skips:   {middle} offsets" in scene.command("position", "adopt", "--offset", str(middle))
    with Watch(daemon) as watch:
        scene.adopt(daemon, "--offset", str(middle))
        answers = scene.topics.wait_answers(offsets, timeout=120)
    assert watch.rss_bytes < RSS_BYTES_MAX
    passed = [answer for answer in answers if answer.offset < middle]
    assert {(answer.status, answer.reason) for answer in passed} == {(Status.UNDECIDED, "version_cleaned_up")}
    assert answers[-1].status == Status.COMMITTED
    assert Status.COMMITTED not in {answer.status for answer in answers[:-1]}
    assert list(daemon.lines("record.internal_error")) == []
