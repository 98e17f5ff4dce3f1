"""Commands on a table in a bucket or container, and `committerd append` of files there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import lance
import pyarrow as pa
import pyarrow.parquet
import pytest

from committerd.commands.system import stores_of
from committerd.settings.load import load_storage_settings
from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import StorePlace, cloud_place, s3_place
from harness.scene import Scene
from tests.commands.running import Ran, answered, printed, run
from tests.commands.test_append import files_of_each_format

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.long]

JOB = "daily"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("azure", marks=pytest.mark.azure),
        pytest.param("gcs", marks=pytest.mark.gcs),
    ],
)
def place(request: pytest.FixtureRequest) -> StorePlace:
    server = request.getfixturevalue(request.param)
    return s3_place(server) if request.param == "s3" else cloud_place(server)


@pytest.fixture
def scene(
    kafka: KafkaBroker | RunningKafka, place: StorePlace, dataset: str, tmp_path: Path, launch: Launch
) -> Iterator[Scene]:
    """A dataset whose table is to be in the bucket, in a folder of its own."""
    own = StorePlace(f"{bucket(place)}/{dataset}.lance", place.storage_options, place.settings)
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=own, launch=launch) as made:
        yield made


def bucket(place: StorePlace) -> str:
    """Its URI."""
    return place.uri.removesuffix("/lake/table.lance")


@pytest.fixture
def folder(scene: Scene, place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of its own in the bucket, for sources."""
    for name, value in place.settings.items():
        monkeypatch.setenv(f"COMMITTERD_{name}", value)
    return f"{bucket(place)}/in of {scene.name}"


def put(folder: str, files: Mapping[str, bytes]) -> None:
    """Write objects."""

    async def write() -> None:
        async with stores_of(load_storage_settings()) as stores:
            store = stores.open(folder)
            for name, body in files.items():
                await store.put(name, body)

    anyio.run(write)


def append(scene: Scene, place: StorePlace, *words: str) -> Ran:
    return run(scene, "append", scene.table.uri, "--name", scene.name, *words, **dict(place.settings))


def new(scene: Scene, place: StorePlace, *files: str) -> list[str]:
    """Append files as a job; those that were not in the table before."""
    ran = append(scene, place, "--create", "--json", "--job", JOB, *files)
    assert ran.code == 0, ran.err
    return [one["file"] for one in ran.json()["files"] if not one["duplicate"]]


def test_files_of_each_format_come_from_a_folder_there(
    scene: Scene, place: StorePlace, folder: str, tmp_path: Path
) -> None:
    local = tmp_path / "in"
    local.mkdir()
    paths = files_of_each_format(local)
    found = {str(one.relative_to(local)): one.read_bytes() for one in local.rglob("*") if one.is_file()}
    put(folder, found | {"_SUCCESS": b"", ".a.parquet.crc": b""})
    scene.started()
    names = sorted(f"{folder}/{Path(path).name}" for path in paths)
    ran = append(scene, place, "--create", "--json", names[0])
    assert ran.code == 0, ran.err
    ran = append(scene, place, "--json", folder)
    assert ran.code == 0, ran.err
    assert sorted(one["file"] for one in ran.json()["files"]) == names
    assert sorted(scene.table.ids()) == [0, *range(2), *range(1, 12)]


def test_a_pattern_takes_the_names_that_it_matches(scene: Scene, place: StorePlace, folder: str) -> None:
    names = ["in/2026-05-1.csv", "in/2026-05-2.csv", "in/2026-06-1.csv", "in/_2026-05.csv", "in2/2026-05-3.csv"]
    put(folder, {name: b"id\n%d\n" % number for number, name in enumerate([*names, "in/below/2026-05-4.csv"])})
    scene.started()
    assert new(scene, place, f"{folder}/in/2026-05-*.csv") == [f"{folder}/{name}" for name in names[:2]]
    assert new(scene, place, f"{folder}/in*/*-05-*.csv") == [f"{folder}/{names[4]}"]
    assert new(scene, place, f"{folder}/*") == [
        f"{folder}/{one}" for one in ("in/2026-06-1.csv", "in/below/2026-05-4.csv")
    ]
    assert new(scene, place, f"{bucket(place)}/in of {scene.name}*/in/2026-06-*.csv") == [], "it is the same object"
    assert sorted(scene.table.ids()) == [0, 1, 2, 4, 5]
    none = append(scene, place, f"{folder}/in/*.parquet")
    assert (none.code, "*.parquet: no object has such a name" in none.err) == (1, True), none.err
    bucketless = append(scene, place, f"{place.uri.partition('://')[0]}://lake*/in.csv")
    assert (bucketless.code, "a bucket has one name" in bucketless.err) == (1, True), bucketless.err


def test_a_file_of_a_job_is_itself_by_its_etag(scene: Scene, place: StorePlace, folder: str, tmp_path: Path) -> None:
    def parquet(first: int) -> bytes:
        pyarrow.parquet.write_table(pa.table({"id": [first, first + 1]}), tmp_path / "one.parquet")
        return (tmp_path / "one.parquet").read_bytes()

    put(folder, {"1.parquet": parquet(0), "2.parquet": parquet(2)})
    one, two = f"{folder}/1.parquet", f"{folder}/2.parquet"
    scene.started()
    assert new(scene, place, one) == [one]
    assert new(scene, place, folder) == [two]
    other_names = {"s3": "s3a", "az": "azure", "gs": "GS"}
    scheme, _, rest = two.partition(":")
    assert new(scene, place, f"{other_names[scheme]}:{rest}", one) == []
    put(folder, {"1.parquet": parquet(4)})
    refused = append(scene, place, "--job", JOB, one)
    assert (refused.code, "is not the file any more" in refused.err) == (1, True), refused.err
    assert sorted(scene.table.ids()) == [0, 1, 2, 3]


def test_what_is_wrong_with_a_source_is_said(scene: Scene, place: StorePlace, folder: str) -> None:
    put(folder, {"wrong.parquet": b"no parquet", "rows.txt": b"id\n1\n"})
    scene.started()
    nowhere = f"{place.uri.partition('://')[0]}://no-such-bucket-of-ours/x.parquet"
    for source, sentence in (
        (f"{folder}/wrong.parquet", "can't be read as parquet"),
        (f"{folder}/nothing.parquet", "can't be read as parquet"),
        (f"{folder}/rows.txt", "give --format"),
        (nowhere, "can't be read"),
    ):
        ran = append(scene, place, "--create", source)
        assert (ran.code, sentence in ran.err, source in ran.err) == (1, True, True), ran.err
        assert "Traceback" not in ran.err


def test_each_command_that_takes_a_table_takes_one_there(scene: Scene, place: StorePlace, tmp_path: Path) -> None:
    given: Any = dict(place.settings)
    daemon = scene.daemon()
    scene.table.create(3)
    scene.committed(2)
    table = (scene.table.uri, "--name", scene.name)
    shown = answered(scene, "status", *table, **given)
    assert (shown["table"]["uri"], shown["table"]["version"]) == (scene.table.uri, scene.table.version)
    assert "records passed" in printed(scene, "audit", *table, **given)
    assert "versions would be deleted" in printed(scene, "maintain", *table, "--dry-run", **given)
    assert "keeps a table safe" in printed(scene, "probe", scene.table.uri, **given)
    daemon.stop()
    printed(scene, "recreate", *table, "--reason", "a new format", "--apply", **given)
    assert (scene.table.version, scene.table.ids()) == (1, [])

    staged = tmp_path / "staged.txn"
    staged.write_bytes(scene.table.append().SerializeToString())
    printed(scene, "commit", scene.table.uri, str(staged), **given)
    assert lance.dataset(scene.table.uri, storage_options=dict(place.storage_options)).version == 2
    scene.started()
    scene.committed(1)
