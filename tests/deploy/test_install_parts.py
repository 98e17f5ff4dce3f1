"""scripts/install_deploy_parts.sh: what a machine lacks is installed where that may be, else named with the command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness import PartMissingError
from tests.deploy.image import ROOT, Builder

PROGRAMS = {
    "etcd": "etcd-server",
    "prometheus": "prometheus",
    "openssl": "openssl",
    "buildah": "buildah",
    "chromium": "chromium",
    "debootstrap": "debootstrap",
}


def install(folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run it on a machine that has these programs and no others."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    command = ["/bin/sh", str(ROOT / "scripts" / "install_deploy_parts.sh")]
    return subprocess.run(command, env={"PATH": str(folder)}, capture_output=True, text=True, check=False)


def test_all_packages_are_named_where_there_is_no_apt(tmp_path: Path) -> None:
    done = install(tmp_path)
    assert done.returncode == 1
    assert " ".join(PROGRAMS.values()) in done.stderr


def test_who_may_not_install_is_told_the_command(tmp_path: Path) -> None:
    done = install(tmp_path, **{"apt-get": "exit 9", "id": "echo 1000", "etcd": "", "openssl": ""})
    assert done.returncode == 1
    assert "sudo apt-get install --no-install-recommends prometheus buildah chromium debootstrap" in done.stderr


def test_only_what_is_missing_is_installed(tmp_path: Path) -> None:
    have = {name: "" for name in PROGRAMS if name != "buildah"}
    done = install(tmp_path, **have, **{"apt-get": 'echo "$@"', "id": "echo 0"})
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("install --yes -qq --no-install-recommends buildah")


def test_where_all_is_there_nothing_is_done(tmp_path: Path) -> None:
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        pytest.skip("there is no debian-archive-keyring: run scripts/install_deploy_parts.sh")
    done = install(tmp_path, **dict.fromkeys(PROGRAMS, ""), **{"apt-get": "exit 9"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_tests_of_images_say_what_they_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PartMissingError, match=r"no buildah and no debootstrap: run scripts/install_deploy_parts\.sh"):
        Builder()
