"""What Kafka's nodes begin with: each gets a copy of the data, and the archive of classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from committerd.dev import kafka_node
from harness.ready_made import ReadyMade, folder_of

FORMATTED = "version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\ndirectory.id=BBBBBBBBBBBBBBBBBBBBBB\n"


@pytest.fixture
def begun(tmp_path: Path) -> ReadyMade:
    data = tmp_path / "begun" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text(FORMATTED)
    (data / "bootstrap.checkpoint").write_bytes(b"records")
    return ReadyMade(data.parent)


def test_each_node_has_ids_of_its_own_and_the_rest_is_the_same(begun: ReadyMade, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for data in (one, other):
        begun.copy_data(data)
        assert (data / "bootstrap.checkpoint").read_bytes() == b"records"
        lines = (data / "meta.properties").read_text().splitlines()
        assert [line.partition("=")[0] for line in lines] == ["version", "cluster.id", "node.id", "directory.id"]
        assert (lines[0], lines[2]) == ("version=1", "node.id=1")
    ids = {
        line for data in (one, other) for line in (data / "meta.properties").read_text().splitlines() if ".id" in line
    }
    assert len(ids) == 1 + 2 * 2
    assert kafka_node.cluster_of(one) != kafka_node.cluster_of(other) != "AAAAAAAAAAAAAAAAAAAAAA"


def test_what_an_interrupted_run_has_left_is_replaced(begun: ReadyMade, tmp_path: Path) -> None:
    for name in ("data", "data-copy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("")
    begun.copy_data(tmp_path / "data")
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"meta.properties", "bootstrap.checkpoint"}
    assert not (tmp_path / "data-copy").exists()


@pytest.mark.parametrize("written", [True, False])
def test_an_archive_is_used_if_java_has_written_one(begun: ReadyMade, tmp_path: Path, written: bool) -> None:
    plain = kafka_node.server("java", tmp_path, tmp_path / "server.properties")
    if written:
        (begun.folder / "classes.jsa").write_bytes(b"")
        plain.insert(1, f"-XX:SharedArchiveFile={begun.folder / 'classes.jsa'}")
    assert begun.server("java", tmp_path, tmp_path / "server.properties") == plain


def test_another_java_has_another_archive(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for program in (first, second):
        program.write_text("")
    assert folder_of(str(first), tmp_path) == folder_of(str(first), tmp_path) != folder_of(str(second), tmp_path)
