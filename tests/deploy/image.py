"""The images of deploy/Dockerfile, built and run without a Docker engine.

buildah runs the Dockerfile's own steps in chroots. Their base is a Debian that debootstrap makes from Debian's archive:
what the base's image holds, and nothing of this machine but its certificate authorities. Layers stay in the cache, so
only the first build takes minutes. All of it needs root.

An image runs as an engine would run it, in a mount namespace of its own: its user, its environment, a read-only root
and an empty /tmp. With `COMMITTERD_IMAGE_ARCHITECTURE=arm64` (`make test-arm64`) the images are those of arm64, and
qemu runs the programs in them.

    python -m tests.deploy.image --fetch    only build both
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import PartMissingError, cache_folder

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
_CODENAMES = {"12": "bookworm", "13": "trixie"}
_ARCHIVE = "http://deb.debian.org/debian"
_EMULATORS = {"arm64": "qemu-aarch64"}
"""By Debian's name of an architecture: what the kernel calls the program that runs its programs."""
_AUTHORITIES = Path("/usr/local/share/ca-certificates")
"""Where Debian keeps those of a site."""

_RUN_SECONDS_MAX = 900
"""Of one program of an image, with time for an emulator."""

_CONFINED = """
set -e
root=$1 user=$2; shift 2
touch "$root/etc/hosts" "$root/etc/resolv.conf"
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
for file in /etc/hosts /etc/resolv.conf; do mount --bind "$file" "$root$file"; done
while [ "$1" != -- ]; do mount --bind "$1" "$root$2"; shift 2; done
shift
exec setpriv --no-new-privs chroot --userspec="$user" --groups= "$root" "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """One that was built, with its files mounted at `root`."""

    root: Path
    config: Mapping[str, Any]
    """As an engine reads it: User, Env, Entrypoint, Cmd, Healthcheck, Labels and so on."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the image sets."""
        return dict(entry.split("=", 1) for entry in self.config["Env"])

    @property
    def healthcheck(self) -> list[str]:
        """The program and its arguments. One that needs a shell is refused here."""
        kind, *words = list[str](self.config["Healthcheck"]["Test"])
        assert kind == "CMD", f"the healthcheck is of the kind {kind}"
        return words

    def started(
        self,
        words: Sequence[str] = (),
        *,
        entrypoint: Sequence[str] | None = None,
        volumes: Mapping[Path, str] | None = None,
    ) -> list[str]:
        """The command that starts it with these arguments, else with its own; it becomes the process itself.

        `volumes`: folders and files of this machine, and where they lie inside.
        """
        mounts: list[str] = []
        for outside, inside in (volumes or {}).items():
            here = self.root / inside.removeprefix("/")
            here.mkdir(parents=True, exist_ok=True) if outside.is_dir() else here.touch()
            mounts += [str(outside), inside]
        run = [*(self.config["Entrypoint"] if entrypoint is None else entrypoint), *(words or self.config["Cmd"] or ())]
        return [
            "unshare", "--mount", "--propagation", "private",
            "sh", "-c", _CONFINED, "sh", str(self.root), self.config["User"], *mounts, "--", *run,
        ]  # fmt: skip

    def run(
        self, *words: str, environment: Mapping[str, str] | None = None, volumes: Mapping[Path, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the image to its end."""
        return subprocess.run(
            self.started(words, entrypoint=(), volumes=volumes),
            env=self.environment | dict(environment or {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=_RUN_SECONDS_MAX,
        )


class Builder:
    """buildah with storage of its own in the cache."""

    def __init__(self, architecture: str = "") -> None:
        """`architecture`: as Debian names it; default that of this machine.

        Raises `PartMissingError` where nothing can be built.
        """
        if architecture and not Path("/proc/sys/fs/binfmt_misc", _EMULATORS[architecture]).exists():
            raise PartMissingError(
                f"the kernel runs no programs of {architecture}: apt-get install qemu-user-static binfmt-support"
            )
        self._architecture = architecture
        missing = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
        if missing:
            raise PartMissingError(f"there is no {' and no '.join(missing)}: run scripts/install_deploy_parts.sh")
        if os.geteuid() != 0:
            raise PartMissingError("an image can be built by root only: run the tests of deploy/ as root")
        self._storage = cache_folder() / (f"images-{architecture}" if architecture else "images")
        self._storage.mkdir(parents=True, exist_ok=True)

    def build(self, target: str) -> str:
        """A stage of the Dockerfile as the working tree has it; returns the image's id."""
        with self._alone():
            self._make_base()
            tag = f"localhost/{target}:test"
            before = self._buildah("images", "--quiet", "--no-trunc", "--filter", f"reference={tag}").split()
            made = self._storage / f"{target}.id"
            self._buildah(
                "build", *self._platform(), "--isolation", "chroot", "--network", "host", "--pull-never", "--layers",
                "--format", "docker", "--file", str(DOCKERFILE), "--target", target, "--iidfile", str(made),
                "--tag", tag, str(ROOT),
            )  # fmt: skip
            image = made.read_text().strip()
            for old in before:
                if old != image:  # its layers go too, but for those that the new one has
                    with contextlib.suppress(RuntimeError):  # another run of the tests may be using it
                        self._buildah("rmi", old)
            return image

    @contextlib.contextmanager
    def mounted(self, target: str) -> Iterator[Image]:
        """The built stage, ready to run."""
        image = self.build(target)
        config = json.loads(self._buildah("inspect", "--type", "image", image))["Docker"]["config"]
        container = self._buildah("from", "--pull-never", image).strip()
        try:
            yield Image(Path(self._buildah("mount", container).strip()), config)
        finally:
            self._buildah("rm", container)

    def _make_base(self) -> None:
        """The image that the Dockerfile starts from, unless the storage has it."""
        first = re.search(r"^ARG BASE=(debian:(\d+)[\w.-]*)", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
        assert first, "the base of the Dockerfile is no Debian"
        tag = f"docker.io/library/{first[1]}"
        if self._buildah("images", "--quiet", "--filter", f"reference={tag}").strip():
            return
        with tempfile.TemporaryDirectory(prefix="base-", dir=self._storage) as scratch:
            root, packed = Path(scratch, "root"), Path(scratch, "root.tar")
            arch = [f"--arch={self._architecture}"] if self._architecture else []
            _run("debootstrap", *arch, "--variant=minbase", _CODENAMES[first[2]], str(root), _ARCHIVE)
            for authority in _AUTHORITIES.glob("*.crt"):
                target = root / _AUTHORITIES.relative_to("/")
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(authority, target)
            _run("tar", "-C", str(root), "-cf", str(packed), ".")
            container = self._buildah("from", *self._platform(), "scratch").strip()
            try:
                self._buildah("add", "--quiet", container, str(packed), "/")
                self._buildah("commit", "--quiet", "--format", "docker", container, tag)
            finally:
                self._buildah("rm", container)

    def _platform(self) -> list[str]:
        return ["--platform", f"linux/{self._architecture}"] if self._architecture else []

    def _buildah(self, *words: str) -> str:
        place = ["--root", str(self._storage / "root"), "--runroot", str(self._storage / "run")]
        return _run("buildah", *place, *words)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One build at a time: two would make the same layers."""
        with (self._storage / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shown = "\n".join((done.stdout + done.stderr).splitlines()[-60:])
        raise RuntimeError(f"{' '.join(words)}\nended with {done.returncode}:\n{shown}")
    return done.stdout


def _main() -> None:
    parser = argparse.ArgumentParser(description="the images of deploy/Dockerfile, for their tests")
    parser.add_argument("--fetch", action="store_true", help="only build what is missing", required=True)
    parser.parse_args()
    try:
        builder = Builder()
        for target in ("committerd", "producer"):
            print(target, builder.build(target))
    except PartMissingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
