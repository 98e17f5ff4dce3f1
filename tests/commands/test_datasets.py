"""What `committerd datasets find` makes of topics, and what it leaves alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from committerd.commands.datasets.finding import Found, found, names_in, write
from committerd.errors import SettingsError
from committerd.settings.datasets import DatasetEntry
from committerd.settings.load import DatasetsFile, SharedSettings

SHARED = SharedSettings.model_validate({"kafka": {"bootstrap_servers": "kafka:9092", "group": "lake"}})
URI = "s3://lake/{name}.lance"
ANY = re.compile(".*")


@pytest.fixture
def file(tmp_path: Path) -> DatasetsFile:
    """No file yet; the settings name `own`."""
    groups = {name: getattr(SHARED, name) for name in SharedSettings.model_fields}
    return DatasetsFile(
        path=tmp_path / "datasets.json", shared=groups, others={"own": DatasetEntry(uri="s3://lake/elsewhere.lance")}
    )


def test_the_staged_topics_whose_whole_name_matches_are_datasets_but_no_branches() -> None:
    topics = ["b.staged", "a.staged", "a.outcomes", "a.dead", "ab.staged", "a.tree.exp.staged", ".staged", "p-a.staged"]
    assert names_in(topics, re.compile("[ab]|.*tree.*"), topic_prefix="") == ["a", "b"]
    assert names_in(topics, re.compile(".*"), topic_prefix="p-") == ["a"]


def test_the_file_follows_the_topics(file: DatasetsFile) -> None:
    first = found(["a", "b", "own"], URI, file, pattern=ANY)
    assert (first.added, first.removed, first.moved) == (["a", "b"], [], [])
    write(file, first.content)
    assert file.path.stat().st_mode & 0o777 == 0o644
    assert {key: one.dataset.uri for key, one in file.settings_in(file.read()).items()} == {
        "a": "s3://lake/a.lance", "b": "s3://lake/b.lance", "own": "s3://lake/elsewhere.lance"
    }  # fmt: skip
    assert found(["b", "a"], URI, file, pattern=ANY) == Found(content=first.content, added=[], removed=[], moved=[])
    next_ = found(["b", "c"], "s3://lake/new/{name}.lance", file, pattern=ANY)
    assert (next_.added, next_.removed, next_.moved) == (["c"], ["a"], ["b"])
    write(file, next_.content)
    assert json.loads(file.path.read_text())["datasets"]["c"] == {"uri": "s3://lake/new/c.lance"}
    assert [one.name for one in file.path.parent.iterdir()] == [file.path.name]


def test_what_somebody_wrote_into_the_file_stays(file: DatasetsFile) -> None:
    by_hand = {"commit": {"group_records_max": 7}}
    held = {
        "a": {"uri": "s3://lake/a.lance", **by_hand},
        "gone": {"uri": "s3://lake/gone.lance"},
        "x-1": {"uri": "s3://x"},
    }
    file.path.write_text(json.dumps({"datasets": held}))
    changes = found(["a"], "s3://new/{name}.lance", file, pattern=re.compile("[a-z]+"))
    assert (changes.added, changes.removed, changes.moved) == ([], ["gone"], ["a"])
    assert json.loads(changes.content)["datasets"] == {"a": {"uri": "s3://new/a.lance", **by_hand}, "x-1": held["x-1"]}


def test_what_cannot_be_served_is_refused_before_anything_is_written(file: DatasetsFile) -> None:
    with pytest.raises(SettingsError, match=r"has no \{name\}"):
        found(["a"], "s3://lake/a.lance", file, pattern=ANY)
    with pytest.raises(SettingsError, match="are one table"):
        found(["elsewhere"], URI, file, pattern=ANY)
    with pytest.raises(SettingsError, match="user or password"):
        found(["a"], "s3://user:secret@lake/{name}.lance", file, pattern=ANY)
    file.path.write_text("[datasets.a]\nuri = 's3://lake/a.lance'\n")
    with pytest.raises(SettingsError, match=r"datasets\.json"):
        found(["a"], URI, file, pattern=ANY)
    assert file.path.read_text().startswith("[datasets.a]")


def test_a_file_in_another_format_is_not_overwritten(file: DatasetsFile, tmp_path: Path) -> None:
    toml = DatasetsFile(path=tmp_path / "datasets.toml", shared=file.shared, others={})
    with pytest.raises(SettingsError, match=r"name a file that ends in \.json"):
        found(["a"], URI, toml, pattern=ANY)


def test_a_folder_that_is_not_there_is_said(file: DatasetsFile, tmp_path: Path) -> None:
    lost = DatasetsFile(path=tmp_path / "nowhere" / "datasets.json", shared=file.shared, others={})
    with pytest.raises(SettingsError, match="No such file or directory"):
        write(lost, found(["a"], URI, lost, pattern=ANY).content)
