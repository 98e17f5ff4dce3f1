"""Builds programs from public Go modules with `go install`, once, into the cache."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness import PartMissingError, cache_folder, made_in_cache

_GO_MIN = (1, 21)  # from this version on Go downloads the newer toolchain that a module requires
INSTALL = "install Go 1.21 or newer (https://go.dev/dl; macOS: brew install go)"


@dataclass(frozen=True, slots=True)
class GoProgram:
    """A Go program. `binary`: the name that `go install` gives it."""

    name: str
    version: str
    package: str
    binary: str

    @property
    def path(self) -> Path:
        """The path of the program in the cache; it need not exist."""
        machine = f"{sys.platform}-{platform.machine()}"
        return cache_folder() / f"{self.name}-{self.version}-{machine}" / self.binary

    def built(self) -> Path:
        """The path of the program; builds it unless it is in the cache. Raises `PartMissingError` if Go is missing.

        Safe to call from several processes at once.
        """
        if self.path.is_file():
            return self.path
        go = _go(f"{self.name} {self.version}")
        with made_in_cache(self.path.parent, needed=self.path) as made:
            done = subprocess.run(
                [go, "install", f"{self.package}@{self.version}"],
                # With the user's GOOS, GOARCH or GOFLAGS `go install` might write elsewhere.
                env={**os.environ, "GOBIN": str(made), "GOOS": "", "GOARCH": "", "GOFLAGS": ""},
                cwd=made.parent,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise RuntimeError(f"Go can't build {self.name} {self.version}:\n{done.stdout}{done.stderr}")
        return self.path


def _go(part: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise PartMissingError(f"{part} has to be built and there is no `go`: {INSTALL}")
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout.strip()
    version = re.match(r"go(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < _GO_MIN:
        raise PartMissingError(f"{part} has to be built and {go} is {said or 'broken'}: {INSTALL}")
    return go
