"""`make release` and the workflows that call it: the same bytes twice, and what was built installs and commits."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.utils import canonicalize_name

import committerd
from harness import PartMissingError
from harness.kafka import KafkaBroker, RunningKafka
from scripts import programs
from scripts.generate import lock_image
from scripts.release import __main__ as release
from scripts.release import advisories, building, trying

VERSION = committerd.__version__
WORKFLOWS = sorted((programs.ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    try:
        building.build(folder)
    except PartMissingError as error:
        pytest.skip(str(error))
    return folder


@pytest.mark.long
def test_a_second_build_has_the_same_bytes(built: Path, tmp_path: Path) -> None:
    again = tmp_path / "elsewhere"
    files = building.build(again)
    assert [file.name for file in files] == sorted(
        [
            f"committerd-{VERSION}-py3-none-any.whl",
            f"committerd-{VERSION}.tar.gz",
            f"committerd-{VERSION}.tgz",
            f"committerd_client-{VERSION}-py3-none-any.whl",
            f"committerd_client-{VERSION}.tar.gz",
            "committerd-image.cdx.json",
            "committerd-maintain-image.cdx.json",
            "committerd-producer-image.cdx.json",
        ]
    )
    assert {file.name: file.read_bytes() for file in built.iterdir()} == {
        file.name: file.read_bytes() for file in again.iterdir()
    }
    checked = subprocess.run(["sha256sum", "--check", "--strict", building.SUMS], cwd=again, check=False)
    assert checked.returncode == 0
    assert len((again / building.SUMS).read_text(encoding="utf-8").splitlines()) == len(files)


def test_the_archives_hold_what_git_tracks_and_the_wheels_only_packages(built: Path) -> None:
    tracked = set(programs.run("git", "ls-files").splitlines())
    with tarfile.open(built / f"committerd-{VERSION}.tar.gz") as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert inside - tracked == {"PKG-INFO"}
    assert {"LICENSE", "committerd/__main__.py", "protos/lance/transaction.proto"} <= inside
    for name, folders in (
        (f"committerd-{VERSION}", {"committerd"}),
        (f"committerd_client-{VERSION}", {"committerd_client", "committerd_common", "committerd_spark"}),
    ):
        with zipfile.ZipFile(built / f"{name}-py3-none-any.whl") as wheel:
            found = {entry.partition("/")[0] for entry in wheel.namelist()}
        assert folders | {f"{name}.dist-info"} <= found
        assert not {"tests", "harness", "scripts", "bench"} & found


def test_a_bill_names_each_locked_package_with_its_hashes(built: Path) -> None:
    locked = lock_image.locked((lock_image.FOLDER / "committerd.txt").read_text(encoding="utf-8"))
    bill = json.loads((built / "committerd-image.cdx.json").read_text(encoding="utf-8"))
    assert bill["bomFormat"] == "CycloneDX"
    components = {canonicalize_name(one["name"]): one for one in bill["components"]}
    assert {name: one["version"] for name, one in components.items()} == locked
    assert bill["metadata"]["component"]["name"] == "committerd"
    for one in components.values():
        hashes = [entry for link in one["externalReferences"] for entry in link.get("hashes", ())]
        assert any(entry["alg"] == "SHA-256" for entry in hashes), one["name"]


def test_from_an_index_into_an_empty_environment_it_commits(
    built: Path, kafka: KafkaBroker | RunningKafka, dataset: str, environment_folder: Path, tmp_path: Path
) -> None:
    python = trying.installed(sorted(built.iterdir()), environment_folder)
    rows = trying.committed(python, kafka, dataset, tmp_path)
    assert rows == [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}]


def test_a_tag_is_released_only_if_all_have_its_version() -> None:
    assert set(release.problems(f"v{VERSION}")) <= {
        "CHANGELOG.md names no date of the version",
        "CHANGELOG.md has entries under Unreleased: move them to the version",
    }
    wrong = "\n".join(release.problems("v9.9.9"))
    for part in ("committerd has", "committerd-client has", "the chart has", "deploy/Dockerfile", "CHANGELOG.md names"):
        assert part in wrong


@pytest.fixture
def archive(tmp_path: Path) -> Callable[[Mapping[str, Any]], Path]:
    """Writes an archive like OSV's, with an advisory about the locked protobuf, and others that concern none."""

    def write(affected: Mapping[str, Any]) -> Path:
        file = tmp_path / "all.zip"
        advisory = {"schema_version": "1.6.0", "id": "PYSEC-0000-1", "summary": "It breaks.", "affected": [affected]}
        other = {"id": "GHSA-0", "affected": [{"package": {"ecosystem": "npm", "name": "protobuf"}}]}
        with zipfile.ZipFile(file, "w") as made:
            made.writestr("PYSEC-0000-1.json", json.dumps(advisory))
            made.writestr("GHSA-0.json", json.dumps(other))
        return file

    return write


LOCKED_PROTOBUF = lock_image.tested()["protobuf"]
AFFECTED: Mapping[str, tuple[bool, Mapping[str, Any]]] = {
    "named": (True, {"versions": ["1.0", LOCKED_PROTOBUF]}),
    "from the first on": (True, {"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}]}),
    "up to it": (
        True,
        {"ranges": [{"type": "ECOSYSTEM", "events": [{"last_affected": LOCKED_PROTOBUF}, {"introduced": "1.0"}]}]},
    ),
    "repaired in it": (
        False,
        {"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": LOCKED_PROTOBUF}]}]},
    ),
    "later": (False, {"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "99"}]}]}),
    "commits": (False, {"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}], "versions": ["1.0"]}),
}


@pytest.mark.parametrize("name", AFFECTED)
def test_an_advisory_concerns_the_versions_that_it_names(name: str) -> None:
    concerned, affected = AFFECTED[name]
    advisory = {"id": "1", "affected": [{"package": {"ecosystem": "PyPI", "name": "ProtoBuf"}, **affected}]}
    found = advisories.matching({"protobuf": [advisory]}, "protobuf", LOCKED_PROTOBUF)
    assert found == ([advisory] if concerned else [])


def test_what_is_locked_is_held_against_a_copy_of_the_advisories(
    archive: Callable[[Mapping[str, Any]], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    package = {"ecosystem": "PyPI", "name": "protobuf"}
    shutil.copy(lock_image.FOLDER / "producer.txt", tmp_path)
    release.check_advisories(archive({"package": package, "versions": ["1.0"]}), locks=tmp_path)
    assert "producer.txt" in capfd.readouterr().out
    with pytest.raises(subprocess.CalledProcessError):
        release.check_advisories(archive({"package": package, "versions": [LOCKED_PROTOBUF]}), locks=tmp_path)
    said = capfd.readouterr()
    assert re.search(rf"protobuf +{re.escape(LOCKED_PROTOBUF)} +PYSEC-0000-1", said.err), said


def test_a_file_without_advisories_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as made:
        made.writestr("read.me", "")
    with pytest.raises(ValueError, match=r"must be OSV's PyPI/all.zip"):
        release.check_advisories(tmp_path / "all.zip")


def workflow(path: Path) -> Mapping[Any, Any]:
    read: Mapping[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return read


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_that_exist_with_the_least_rights(path: Path) -> None:
    text, read = path.read_text(encoding="utf-8"), workflow(path)
    listed = subprocess.run(["make"], capture_output=True, text=True, check=True, cwd=programs.ROOT).stdout
    targets = set(re.findall(r"^  make ([\w-]+)", listed, re.MULTILINE))
    called = {word for line in re.findall(r"- run: make (.*)$", text, re.MULTILINE) for word in line.split()}
    assert {word for word in called if re.fullmatch(r"[a-z-]+", word)} <= targets
    assert read["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in text
    for job in read["jobs"].values():
        assert set(job.get("strategy", {}).get("matrix", {}).get("target", ())) <= targets
        for step in job["steps"]:
            # By commit, since a tag can be moved; its name stands behind it.
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step.get("uses", f"a/b@{'0' * 40}")), step["uses"]
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False
            # What others choose, such as the name of a branch, gets into no program's text.
            assert "${{" not in step.get("run", ""), step["run"]


def test_ci_runs_what_developers_run() -> None:
    text = (programs.ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert "bash .ci/run" in text
