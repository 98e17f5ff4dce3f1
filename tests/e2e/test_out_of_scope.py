"""Statements of docs/limits.md about what is out of scope that no other test checks: branches and namespaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd_client import staging
from committerd_common.messages import Status
from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import StorePlace
from harness.scene import Scene

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def test_a_branch_is_a_table_of_its_own_with_a_queue_of_its_own(
    scene: Scene, kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch
) -> None:
    ids = scene.table.create()
    scene.started()
    ids += scene.committed(2)
    version = scene.table.version
    scene.table.open().create_branch("dev")
    place, folder = StorePlace(f"{scene.table.uri}/tree/dev"), tmp_path / "branch"
    folder.mkdir()
    with Scene(
        kafka=kafka.bootstrap_servers, name=f"{scene.name}-dev", folder=folder, place=place, launch=launch
    ) as branch:
        daemon = branch.daemon()
        daemon.wait_refused("topic_id")  # it starts with the position of main's queue
        branch.adopt(daemon)
        mine = branch.committed()
        dev = scene.table.open().checkout_version(("dev", None))
        assert sorted(dev.to_table()["id"].to_pylist()) == sorted([*ids, *mine])
        assert (scene.table.version, scene.table.ids()) == (version, ids)
        for here, other in ((scene, branch), (branch, scene)):
            (answer,) = here.ask(other.table.append(), dataset=other.table.uri)
            assert (answer.status, answer.reason) == (Status.INVALID, "wrong_dataset")


def test_versions_that_a_namespace_tracks_in_the_tables_folder_are_seen_by_all(scene: Scene, tmp_path: Path) -> None:
    # Imported here: it takes a second, and every process of the tests imports this module.
    from lance.namespace import DirectoryNamespace
    from lance_namespace import DescribeTableRequest

    options = {"root": str(tmp_path), "manifest_enabled": "true", "table_version_tracking_enabled": "true"}
    namespace: Any = DirectoryNamespace(**options)  # type: ignore[no-untyped-call]
    where: Any = {"namespace_client": namespace, "table_id": ["events"]}
    lance.write_dataset(pa.table({"id": [1]}), mode="create", **where)
    described = namespace.describe_table(DescribeTableRequest(id=["events"]))
    assert described.managed_versioning is True
    fragments = write_fragments(pa.table({"id": [2]}), described.location, mode="append")
    staged = tmp_path / "staged.pb"
    staged.write_bytes(staging.append(fragments).SerializeToString())
    assert "COMMITTED version 2" in scene.command("commit", described.location, str(staged))
    assert lance.dataset(**where).to_table()["id"].to_pylist() == [1, 2]
    lance.write_dataset(pa.table({"id": [3]}), mode="append", **where)
    assert sorted(lance.dataset(described.location).to_table()["id"].to_pylist()) == [1, 2, 3]
