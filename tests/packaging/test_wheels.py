"""Each wheel alone commits, in a fresh environment, with the lowest and the highest versions that it allows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from committerd.dev.jars import KAFKA, folder_of, jars
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import cloud_place, s3_place
from harness.s3 import S3Endpoint
from harness.scene import QUICK
from tests.dev.running import Dev
from tests.packaging.environments import (
    CLIENT,
    COMMITTER,
    Resolution,
    add_pyspark,
    interpreters,
    make_environment,
    project,
)

TESTING = Path(__file__).parents[2] / "docs" / "testing.md"
COMMIT = Path(__file__).parent / "programs" / "commit.py"
STREAM = Path(__file__).parent / "programs" / "stream.py"
RESOLUTIONS = ("lowest-direct", pytest.param("highest", marks=pytest.mark.long))
"""All other tests run with about the highest versions, so these are left to `make test-long`."""
OF_PYARROW = "numpy<2; python_version < '3.13'"
"""pyarrow before 16 is built for numpy 1 and does not ask for it by itself. Python 3.13 has newer ones only."""
OF_PYSPARK = "pandas>=2.0.0"
"""The requirement of `pyspark[sql]` 4.0 besides pyarrow."""
OLDEST, *_, NEWEST = [*interpreters()] * 2
OF_THE_COMMITTER = {"aiobotocore", "aiohttp", "click", "prometheus_client", "pydantic", "pydantic_settings"}

pytestmark = pytest.mark.kafka


@dataclass(frozen=True, slots=True)
class Queue:
    """A dataset that a committer serves."""

    kafka: str
    dataset: str
    uri: str

    def arguments(self, name: str) -> list[str | Path]:
        return [COMMIT, self.kafka, self.dataset, self.uri, name]


@pytest.fixture(scope="module")
def queue(kafka: KafkaBroker | RunningKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    """Served by the committer of this environment."""
    folder = tmp_path_factory.mktemp("queue")
    made = Queue(kafka.bootstrap_servers, f"packaging-{folder.parent.name}", str(folder / "table.lance"))
    with Daemon(name=made.dataset, uri=made.uri, kafka=made.kafka, settings=QUICK, log=folder / "committerd.log"):
        yield made


@pytest.mark.parametrize("resolution", RESOLUTIONS)
@pytest.mark.parametrize("version", sorted({OLDEST, NEWEST}))
def test_the_client_alone_commits(
    queue: Queue, client_wheel: Path, environment_folder: Path, version: str, resolution: Resolution
) -> None:
    asked = list(project(CLIENT)["dependencies"])
    if resolution == "lowest-direct":
        asked.append(OF_PYARROW)
    made = make_environment(
        environment_folder,
        interpreters()[version],
        wheels=[client_wheel],
        requirements=asked,
        resolution=resolution,
    )
    made.check()
    name = f"{resolution}-{version}"
    done = made.run(*queue.arguments(name))
    assert done.returncode == 0, done.stderr
    assert not re.findall(r"^.*committerd_.*Warning.*$", done.stderr, re.MULTILINE), "others may warn, we may not"
    said = json.loads(done.stdout)
    assert said["statuses"] == ["COMMITTED", "DUPLICATE"]
    assert not OF_THE_COMMITTER & set(said["modules"])
    for package, extra in (
        ("committerd_client.staging", "lance"),
        ("committerd_spark", "spark"),
        ("committerd_ray", "ray"),
        ("committerd_daft", "daft"),
    ):
        assert f"pip install 'committerd-client[{extra}]'" in made.run("-c", f"import {package}").stderr


@pytest.mark.pylance
@pytest.mark.parametrize("resolution", RESOLUTIONS)
@pytest.mark.parametrize(
    "version",
    [pytest.param(one, marks=() if one in {OLDEST, NEWEST} else pytest.mark.long) for one in interpreters()],
)
def test_the_client_with_pylance_changes_rows(
    queue: Queue, client_wheel: Path, environment_folder: Path, version: str, resolution: Resolution
) -> None:
    about = project(CLIENT)
    made = make_environment(
        environment_folder,
        interpreters()[version],
        wheels=[client_wheel],
        requirements=[*about["dependencies"], *about["optional-dependencies"]["lance"]],
        resolution=resolution,
    )
    made.check()
    done = made.run(*queue.arguments(f"rows-{resolution}-{version}"), "--pylance")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["numbers"] == [1, 3, 12]


@pytest.mark.long
@pytest.mark.pylance
@pytest.mark.spark
@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_the_spark_writer_streams_each_file_once(
    kafka: KafkaBroker | RunningKafka,
    dataset: str,
    client_wheel: Path,
    environment_folder: Path,
    tmp_path: Path,
    resolution: Resolution,
) -> None:
    about = project(CLIENT)
    extra = about["optional-dependencies"]
    made = make_environment(
        environment_folder,
        Path(sys.executable),
        wheels=[client_wheel],
        requirements=[
            *about["dependencies"],
            *extra["lance"],
            *(one for one in extra["spark"] if not one.startswith(("committerd-client", "pyspark"))),
            OF_PYSPARK,
        ],
        resolution=resolution,
    )
    add_pyspark(made, resolution)
    uri = str(tmp_path / "table.lance")
    with Daemon(name=dataset, uri=uri, kafka=kafka.bootstrap_servers, settings=QUICK, log=tmp_path / "committerd.log"):
        done = made.run(STREAM, kafka.bootstrap_servers, dataset, uri, tmp_path / "stream")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["pyspark"].startswith("3.5." if resolution == "lowest-direct" else "4.")
    assert said["ids"] == [0, 1, 2, 10, 11, 12]


@pytest.mark.s3
@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_the_committer_serves_a_table_in_a_bucket(
    kafka: KafkaBroker | RunningKafka,
    s3: S3Endpoint,
    dataset: str,
    client_wheel: Path,
    committer_wheel: Path,
    environment_folder: Path,
    tmp_path: Path,
    resolution: Resolution,
) -> None:
    own = [one for one in project(COMMITTER)["dependencies"] if not one.startswith("committerd-client")]
    made = make_environment(
        environment_folder,
        Path(sys.executable),
        wheels=[client_wheel, committer_wheel],
        requirements=[*own, *project(CLIENT)["dependencies"]],
        resolution=resolution,
    )
    made.check()
    assert not {"pylance", "obstore", "pytest"} & made.versions().keys()
    for uri, extra in (("az://lake/t.lance", "azure"), ("gs://lake/t.lance", "gcs")):
        refused = made.run("-m", "committerd", "probe", uri)
        assert (refused.returncode, f"pip install 'committerd[{extra}]'" in refused.stderr) == (2, True), refused.stderr
    assert "pip install 'committerd[testing]'" in made.run("-c", "import committerd.testing").stderr
    place = s3_place(s3)
    daemon = Daemon(
        name=dataset,
        uri=place.uri,
        kafka=kafka.bootstrap_servers,
        settings=QUICK | dict(place.settings),
        log=tmp_path / "committerd.log",
        command=[str(made.python), "-I", "-m", "committerd", "run"],
    )
    with daemon:
        done = made.run(*Queue(kafka.bootstrap_servers, dataset, place.uri).arguments(resolution))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["statuses"] == ["COMMITTED", "DUPLICATE"]


@pytest.mark.parametrize(
    ("cloud", "resolution"),
    [
        pytest.param("azure", "highest", marks=pytest.mark.azure),
        pytest.param("gcs", "lowest-direct", marks=pytest.mark.gcs),
    ],
)
def test_with_the_extra_of_a_cloud_it_reaches_that_cloud_and_with_testing_it_tests_a_store(
    request: pytest.FixtureRequest,
    client_wheel: Path,
    committer_wheel: Path,
    environment_folder: Path,
    tmp_path: Path,
    cloud: str,
    resolution: Resolution,
) -> None:
    own = project(COMMITTER)
    made = make_environment(
        environment_folder,
        Path(sys.executable),
        wheels=[client_wheel, committer_wheel],
        requirements=[
            *(one for one in own["dependencies"] if not one.startswith("committerd-client")),
            *own["optional-dependencies"][cloud],
            *own["optional-dependencies"]["testing"],
            *project(CLIENT)["dependencies"],
        ],
        resolution=resolution,
    )
    made.check()
    place = cloud_place(request.getfixturevalue(cloud))
    settings = {f"COMMITTERD_{name}": value for name, value in place.settings.items()}
    probed = made.run("-m", "committerd", "probe", place.uri, environment=settings)
    assert (probed.returncode, "keeps a table safe" in probed.stdout) == (0, True), probed.stderr
    if cloud == "gcs":
        imported = made.run("-c", "import obstore.auth.google, google.auth.aws, google.auth.identity_pool")
        assert imported.returncode == 0, imported.stderr
    (program,) = re.findall(r"^```python\n(.*?)^```$", TESTING.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_sqlite_store.py").write_text(program, encoding="utf-8")
    done = made.run("-m", "pytest", "-p", "no:cacheprovider", "--basetemp", tmp_path / "files", tmp_path)
    assert (done.returncode, " passed" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.pylance
def test_with_its_extras_the_committer_brings_a_kafka_and_needs_no_java(
    client_wheel: Path, committer_wheel: Path, environment_folder: Path, tmp_path: Path
) -> None:
    """`pip install committerd[dev,lance]`, on a machine without Java, Maven and Docker."""
    own, about = project(COMMITTER), project(CLIENT)
    made = make_environment(
        environment_folder,
        Path(sys.executable),
        wheels=[client_wheel, committer_wheel],
        requirements=[
            *(one for one in own["dependencies"] if not one.startswith("committerd-client")),
            *own["optional-dependencies"]["dev"],
            *about["dependencies"],
            *about["optional-dependencies"]["lance"],
        ],
        resolution="highest",
    )
    made.check()
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / folder_of(KAFKA).name).symlink_to(jars(KAFKA))
    command = [str(made.python), "-I", "-m", "committerd"]
    bare = {"PATH": "/nowhere", "JAVA_HOME": ""}
    with Dev(tmp_path / "events.lance", cache=cache, environment=bare, command=command) as dev:
        facts = dev.ready()
        assert str(made.folder) in facts["kafka"]
        place = f"{facts['bootstrap_servers']!r}, dataset='events', dataset_uri={facts['uri']!r}"
        program = (
            "from committerd_client import SyncCommitClient\n"
            f"with SyncCommitClient({place}) as client:\n"
            "    print(client.append([{'id': 1}], create=True).version)"
        )
        done = made.run("-c", program)
        assert done.stdout == "1\n", done.stderr
        assert dev.stop() == 0
