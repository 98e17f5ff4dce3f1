"""`committerd append --job`: a file is itself, in whatever order and company it comes, and is in the table once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow.fs import LocalFileSystem

from committerd.commands.append import job as jobs
from committerd.commands.append.job import NOTHING, FileId, Plan, Record, file_id, record_in, text_of
from committerd.commands.append.loading import Loader
from committerd.commands.append.sources import Source, sources
from committerd.errors import CommitterError
from committerd.settings.load import load_settings
from committerd_client import SyncCommitClient, staging
from committerd_client.table_location import table_location
from harness.scene import Scene
from tests.commands.running import Ran, run

JOB = "daily"


# The record


FILES = [file_id(f"/in/{number}.csv", number, b"hash") for number in range(5)]


def _planned(*files: FileId, version: int = 1) -> Record:
    tokens = iter(range(10))
    return NOTHING.planned(files, version=version, token=lambda: next(tokens))


def test_name_size_and_content_make_a_file() -> None:
    one = file_id("/a", 1, b"x")
    assert one == file_id("/a", 1, "x")
    assert one.name == file_id("/a", 2, b"y").name
    assert len({one, file_id("/b", 1, b"x"), file_id("/a", 2, b"x"), file_id("/a", 1, b"y")}) == 4


def test_what_is_written_into_the_table_is_read_again() -> None:
    record = _planned(*FILES).settled(FILES[:2], [FILES[2]])
    assert record_in({jobs.key_of(JOB): text_of(record)}, JOB) == record
    assert [record.has(one) for one in FILES] == [True, True, False, False, False]
    assert set(record.plans) == set(FILES[3:])
    assert record_in({}, JOB) == NOTHING
    assert record_in({jobs.key_of("other"): text_of(record)}, JOB) == NOTHING


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "done": "", "plans": ""}',
        '{"format": 1, "done": "AAAA", "plans": ""}',
        '{"format": 1, "done": "", "plans": "AAAA"}',
        '{"format": 1, "done": "?", "plans": ""}',
        '{"format": 1, "done": 7, "plans": ""}',
    ],
)
def test_a_record_that_can_not_be_read_is_never_taken_for_none(text: str) -> None:
    with pytest.raises(CommitterError, match=r"record of job 'daily' \(table metadata 'committerd-append\.daily'\)"):
        record_in({jobs.key_of(JOB): text}, JOB)


def test_a_plan_stays_until_it_is_settled_and_a_new_plan_has_other_uuids() -> None:
    first = _planned(FILES[0])
    again = first.planned(FILES[:2], version=9, token=lambda: 77)
    assert again.plans[FILES[0]] == first.plans[FILES[0]] == Plan(FILES[0], 0, 1)
    assert again.plans[FILES[1]] == Plan(FILES[1], 77, 9)
    uuids = [Plan(FILES[0], token, 1).uuid(job, number) for token in (0, 1) for job in "ab" for number in (0, 1)]
    assert len(set(uuids)) == 8
    assert jobs.executions("a", [Plan(FILES[0], 0, 1)], 2) == dict.fromkeys(uuids[:2], FILES[0])
    assert again.settled([FILES[0]], []).planned([FILES[0]], version=1, token=lambda: 1).plans.keys() == {FILES[1]}


def test_a_full_record_refuses_new_files_and_keeps_the_old_ones() -> None:
    names = [file_id(str(number), 0, b"") for number in range(jobs.FILES_MAX)]
    record = NOTHING.settled(names, [])
    assert len(text_of(record)) < 22 * jobs.FILES_MAX
    assert record.planned(names, version=1, token=lambda: 1) == record
    with pytest.raises(CommitterError, match="give the next files another --job"):
        record.planned(FILES[:1], version=1, token=lambda: 1)


# The command


@pytest.fixture
def loaded(scene: Scene, tmp_path: Path) -> Loaded:
    return Loaded(scene, tmp_path / "in")


class Loaded:
    """A table, and a folder with files of two rows each."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene, self.folder = scene, folder
        self.daemon = scene.daemon()
        folder.mkdir()
        self._rows = 0

    def file(self, name: str) -> Path:
        """Write a new file, or new content."""
        path = self.folder / name
        pyarrow.parquet.write_table(pa.table({"id": [self._rows, self._rows + 1]}), path)
        self._rows += 2
        return path

    def append(self, *files: object, job: str = JOB) -> Ran:
        scene = self.scene
        words = ["append", scene.table.uri, "--name", scene.name, "--create", "--json", "--job", job]
        return run(scene, *words, *map(str, files))

    def new(self, *files: object, job: str = JOB) -> list[str]:
        """Append files; the names of those that were not in the table before."""
        ran = self.append(*files, job=job)
        assert ran.code == 0, ran.err
        return [Path(one["file"]).name for one in ran.json()["files"] if not one["duplicate"]]

    def ids(self) -> list[int]:
        return sorted(self.scene.table.ids())

    def data_files(self) -> int:
        return len(list(Path(self.scene.table.uri, "data").iterdir()))


@pytest.mark.kafka
@pytest.mark.pylance
def test_files_come_and_go_in_any_order_and_each_is_appended_once(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, c = loaded.file("a.parquet"), loaded.file("c.parquet")
    assert loaded.new(a, c) == ["a.parquet", "c.parquet"]
    b = loaded.file("b.parquet")
    assert loaded.new(a, b, c) == ["b.parquet"]
    assert loaded.new(c, a) == []
    for path in (a, b, c):
        path.unlink()
    d = loaded.file("d.parquet")
    assert loaded.new(d) == ["d.parquet"]
    assert loaded.ids() == list(range(8))
    # The same file by another way, and twice; a folder; another name is another file.
    monkeypatch.chdir(loaded.folder)
    (loaded.folder / "link.parquet").symlink_to(d)
    assert loaded.new("d.parquet", "./d.parquet", "link.parquet", d) == []
    (loaded.folder / "link.parquet").unlink()
    loaded.file("e.parquet")
    assert loaded.new(loaded.folder) == ["e.parquet"]
    d.rename(loaded.folder / "f.parquet")
    assert loaded.new(loaded.folder) == ["f.parquet"]
    assert loaded.new("f.parquet", job="other") == ["f.parquet"]
    assert loaded.ids() == sorted([*range(10), *[6, 7] * 2])


@pytest.mark.kafka
@pytest.mark.pylance
def test_a_lance_table_is_itself_at_one_version(loaded: Loaded) -> None:
    other = loaded.folder / "other.lance"
    lance.write_dataset(pa.table({"id": [50]}), other)
    loaded.file("a.parquet")
    assert loaded.new(loaded.folder) == ["other.lance", "a.parquet"]
    assert loaded.new(other, f"{other}/") == []
    lance.write_dataset(pa.table({"id": [51]}), other, mode="append")
    ran = loaded.append(other)
    assert (ran.code, f"{other} is not the file any more" in ran.err) == (1, True)
    assert loaded.ids() == [0, 1, 50]


@pytest.mark.kafka
@pytest.mark.pylance
def test_a_changed_file_is_an_error_and_nothing_is_written(loaded: Loaded) -> None:
    a, b = loaded.file("a.parquet"), loaded.file("b.parquet")
    loaded.new(a, b)
    version, files = loaded.scene.table.version, loaded.data_files()
    before, c = b.read_bytes(), loaded.file("c.parquet")
    loaded.file("b.parquet")
    ran = loaded.append(a, b, c)
    assert ran.code == 1
    assert f"{b} is not the file any more that job 'daily' appended" in ran.err
    assert (loaded.scene.table.version, loaded.data_files()) == (version, files)
    b.write_bytes(before)
    assert loaded.new(b, c, a) == ["c.parquet"]


@pytest.mark.kafka
@pytest.mark.pylance
def test_a_file_without_rows_is_appended_too(loaded: Loaded) -> None:
    header, lines = loaded.folder / "header.csv", loaded.folder / "lines.jsonl"
    header.write_text("id\n")
    lines.touch()
    a = loaded.file("a.parquet")
    assert loaded.new(a, header, lines) == ["a.parquet", "header.csv", "lines.jsonl"]
    assert loaded.new(a, header, lines) == []
    header.write_text("id\n5\n")
    assert "is not the file any more" in loaded.append(header).err
    assert loaded.ids() == [0, 1]


@pytest.mark.kafka
@pytest.mark.pylance
def test_a_repeated_load_commits_and_writes_nothing(loaded: Loaded) -> None:
    paths = [loaded.file(f"{number}.parquet") for number in range(5)]
    loaded.new(*paths)
    version, files = loaded.scene.table.version, loaded.data_files()
    assert loaded.new(*paths) == []
    assert (loaded.scene.table.version, loaded.data_files()) == (version, files)


@pytest.mark.kafka
@pytest.mark.pylance
def test_a_file_that_fails_is_appended_once_it_is_mended(loaded: Loaded) -> None:
    a, b, c = loaded.file("a.parquet"), loaded.folder / "b.csv", loaded.file("c.parquet")
    b.write_text("id\n1\nx\n")
    ran = loaded.append(a, b, c)
    assert (ran.code, str(b) in ran.err) == (1, True)
    assert [one["file"] for one in ran.json()["files"]] == [str(a)]
    b.write_text("id\n100\n")
    assert loaded.new(a, b, c) == ["b.csv", "c.parquet"]
    assert loaded.ids() == [0, 1, 2, 3, 100]


def _client(scene: Scene) -> SyncCommitClient:
    return SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri)


def _killed(loaded: Loaded, path: Path, *, committed: bool) -> Plan:
    """Do what a run does that is killed after it has planned a file, or has committed it too."""
    table = lance.dataset(loaded.scene.table.uri)
    who = Source(str(path), "parquet", str(path), LocalFileSystem(), {}).identity
    plan = Plan(who, 7, table.version)
    record = record_in(loaded.scene.table.metadata(), JOB)
    entry = {jobs.key_of(JOB): text_of(Record(record.done, {**record.plans, who: plan}))}
    with _client(loaded.scene) as client:
        client.commit(staging.update_config(table, table_metadata=entry))
        if committed:
            fragments = lance.fragment.write_fragments(pyarrow.parquet.read_table(path), table, mode="append")
            client.commit(staging.append(fragments, dataset=table, uuid=plan.uuid(JOB, 0)))
    return plan


@pytest.mark.kafka
@pytest.mark.pylance
def test_what_a_killed_run_has_appended_is_found_and_the_rest_is_appended(loaded: Loaded) -> None:
    a, b, c = (loaded.file(f"{name}.parquet") for name in "abc")
    loaded.new(a)
    _killed(loaded, b, committed=True)
    _killed(loaded, c, committed=False)
    files = loaded.data_files()
    assert loaded.new(a, b, c) == ["c.parquet"]
    assert loaded.data_files() == files + 1
    assert loaded.ids() == list(range(6))
    record = record_in(loaded.scene.table.metadata(), JOB)
    assert (len(record.done), record.plans) == (3, {})


@pytest.mark.kafka
@pytest.mark.pylance
def test_a_file_that_changed_after_a_run_was_killed_is_an_error_if_the_old_content_is_in_the_table(
    loaded: Loaded,
) -> None:
    a, b, c = (loaded.file(f"{name}.parquet") for name in "abc")
    loaded.new(a)
    _killed(loaded, b, committed=True)
    _killed(loaded, c, committed=False)
    loaded.file("b.parquet")
    loaded.file("c.parquet")
    ran = loaded.append(b)
    assert (ran.code, "is not the file any more" in ran.err) == (1, True)
    ran = loaded.append(b)
    assert (ran.code, "is not the file any more" in ran.err) == (1, True)
    assert loaded.new(c) == ["c.parquet"]
    assert loaded.ids() == [0, 1, 2, 3, 8, 9]


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.parametrize(("assumed", "rows"), [("appended", [0, 1]), ("missing", [0, 1, 2, 3])])
def test_where_nothing_shows_it_any_more_a_person_decides(loaded: Loaded, assumed: str, rows: list[int]) -> None:
    a, b = loaded.file("a.parquet"), loaded.file("b.parquet")
    loaded.new(a)
    _killed(loaded, b, committed=False)
    loaded.daemon.stop()  # it remembers more versions than there are
    loaded.scene.table.write(1)
    loaded.scene.table.open().cleanup_old_versions(older_than=timedelta(0))
    loaded.scene.started()
    ran = loaded.append(a, b)
    assert (ran.code, f"while it appended {b}" in ran.err) == (1, True), ran.err
    assert loaded.append(a, b, "--undecided", assumed).code == 0
    assert loaded.ids() == sorted([*rows, 0])  # the foreign row
    assert loaded.new(a, b) == []


@pytest.mark.kafka
@pytest.mark.pylance
def test_two_runs_at_once_append_each_file_once(loaded: Loaded) -> None:
    paths = [loaded.file(f"{number}.parquet") for number in range(12)]
    loaded.new(paths[0])
    scene = loaded.scene
    settings = load_settings(
        dataset={"name": scene.name, "uri": scene.table.uri}, kafka={"bootstrap_servers": scene.topics.servers}
    )
    together = threading.Barrier(4)

    def load(some: list[Path]) -> None:
        found = sources([str(one) for one in some], chosen=None, settings=settings, storage_options={})
        with _client(scene) as client:
            together.wait(120)
            loader = Loader(client=client, place=table_location(scene.table.uri, None), create=False, nulls=())
            assert len(list(loader.load(found, JOB))) == len(some)

    with ThreadPoolExecutor() as pool:
        list(pool.map(load, (paths, paths[::-1], paths[3:9], paths[6:] + paths[:2])))
    assert loaded.ids() == list(range(24))
    assert record_in(scene.table.metadata(), JOB).plans == {}
    assert loaded.new(*paths) == []
