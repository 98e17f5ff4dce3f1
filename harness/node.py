"""Installs programs from npm packages with `npm ci`, once, into the cache; a lock file names each version and hash."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import PartMissingError, cache_folder

RESOURCES = Path(__file__).resolve().parent / "resources"
_NODE_MIN = 18
INSTALL = f"install Node.js {_NODE_MIN} or newer, with npm (Debian, Ubuntu: apt-get install nodejs npm)"


@dataclass(frozen=True, slots=True)
class NodeProgram:
    """A program of npm packages. `resources/NAME` has its package.json and its lock file."""

    name: str
    version: str
    binary: str
    """Name of the program in `node_modules/.bin`."""

    @property
    def path(self) -> Path:
        """The path of the program in the cache; it need not exist."""
        digest = hashlib.sha256((RESOURCES / self.name / "package-lock.json").read_bytes()).hexdigest()[:8]
        return cache_folder() / f"{self.name}-{self.version}-{digest}" / "node_modules" / ".bin" / self.binary

    def installed(self) -> Path:
        """The path of the program; installs it unless it is in the cache. Raises `PartMissingError` without Node.js.

        Safe to call from several processes at once.
        """
        npm = _npm(f"{self.name} {self.version}")
        if self.path.is_file():
            return self.path
        target = self.path.parents[2]
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{self.name}-", dir=target.parent) as scratch:
            made = Path(scratch, "made")
            shutil.copytree(RESOURCES / self.name, made)
            done = subprocess.run(
                [npm, "ci", "--omit=dev", "--no-audit", "--no-fund", "--ignore-scripts"],
                cwd=made,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise RuntimeError(f"npm can't install {self.name} {self.version}:\n{done.stdout}{done.stderr}")
            try:
                made.rename(target)
            except OSError:  # another process was faster
                if not self.path.is_file():
                    raise
        return self.path


def _npm(part: str) -> str:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise PartMissingError(f"{part} runs on Node.js, and there is no `node` or no `npm`: {INSTALL}")
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    version = re.match(r"v(\d+)\.", said)
    if version is None or int(version[1]) < _NODE_MIN:
        raise PartMissingError(f"{part} runs on Node.js, and {node} is {said or 'broken'}: {INSTALL}")
    return npm
