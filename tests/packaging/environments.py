"""Fresh environments of Python, with a wheel and the lowest or the highest versions of its requirements.

uv resolves and installs. Its cache and the resolved versions are kept in the cache of built parts: a second run
downloads nothing, and installs the same. Interpreters are those of this machine: `python3.N` on the PATH, pyenv's, and
those that COMMITTERD_TEST_PYTHONS names (paths, separated as in PATH).
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement

from harness import cache_folder

ROOT = Path(__file__).resolve().parents[2]
COMMITTER, CLIENT = ROOT, ROOT / "producers"
"""Folders of the two distributions."""
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""The supported Python versions of the client."""

Resolution = Literal["lowest-direct", "highest"]
"""Whether requirements have their lowest or their highest versions. Their own requirements always have the highest."""

_INSPECT = "import sys, venv; print(*sys.version_info[:2], sep='.')"


def project(folder: Path) -> dict[str, Any]:
    """The table `project` of a distribution's pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


@cache
def interpreters() -> Mapping[str, Path]:
    """The first interpreter found of each version in `PYTHONS`, this one among them."""
    found = {_version(Path(sys.executable)): Path(sys.executable)}
    for candidate in _candidates():
        # It takes a tenth of a second to ask an interpreter for its version. Once `python3.11` has said that it is
        # 3.11, others of that name are not asked.
        named = candidate.name.removeprefix("python")
        version = _version(candidate) if named not in found and candidate.is_file() else ""
        if version in PYTHONS:
            found.setdefault(version, candidate)
    return {version: found[version] for version in PYTHONS if version in found}


def _candidates() -> Iterator[Path]:
    yield from (Path(one) for one in os.environ.get("COMMITTERD_TEST_PYTHONS", "").split(os.pathsep) if one)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in PYTHONS:
        yield from sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    for folder, version in itertools.product(os.environ.get("PATH", "").split(os.pathsep), PYTHONS):
        yield Path(folder, f"python{version}")


def _version(python: Path) -> str:
    """Such as 3.12; empty if it is no usable interpreter, like pyenv's shims of inactive versions."""
    done = subprocess.run([python, "-c", _INSPECT], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else ""


def build_wheel(folder: Path, target: Path) -> Path:
    """Build a distribution's wheel into `target`."""
    _uv("build", "--wheel", "--quiet", "--out-dir", target, folder)
    (wheel,) = target.glob(f"{project(folder)['name'].replace('-', '_')}-[0-9]*.whl")
    return wheel


@dataclass(frozen=True, slots=True)
class Environment:
    """A fresh environment. Programs that run in it see nothing of the repository."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def versions(self) -> dict[str, str]:
        """Installed versions, by name."""
        listed = _uv("pip", "list", "--format", "json", "--python", self.python)
        return {one["name"]: one["version"] for one in json.loads(listed)}

    def check(self) -> None:
        """Check that all requirements of the installed packages are met."""
        _uv("pip", "check", "--quiet", "--python", self.python)

    def run(
        self, *words: str | Path, environment: Mapping[str, str] | None = None, warnings: str = "default"
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments. `warnings`: as `-W`; `error` lets none pass."""
        return subprocess.run(
            [self.python, "-I", "-W", warnings, *words],
            env=_bare() | dict(environment or {}),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=540,
        )

    def started(self, *words: str | Path) -> subprocess.Popen[str]:
        """Run Python with these arguments, beside the caller, who writes to it and reads what it prints."""
        return subprocess.Popen(
            [self.python, "-I", *words],
            env=_bare(),
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def _bare() -> dict[str, str]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COMMITTERD_"))}
    return bare | {"LANCE_LOG": "error"}


def make_environment(
    folder: Path, python: Path, *, wheels: Sequence[Path], requirements: Sequence[str], resolution: Resolution
) -> Environment:
    """An environment in `folder`, with these requirements and the wheels, whose own requirements are ignored."""
    _uv("venv", "--quiet", "--no-project", "--python", python, folder)
    made = Environment(folder)
    pinned = _pinned(python, requirements, resolution)
    _install(made, "--no-deps", "--requirement", pinned, *wheels)
    return made


def add_pyspark(environment: Environment, resolution: Resolution) -> None:
    """Install PySpark, which comes without wheels: the lowest version that the client allows, or the one used here.

    The latter is linked, since it takes 450 MB.
    """
    if resolution == "highest":
        (target,) = environment.folder.glob("lib/python3.*/site-packages")
        for package in ("pyspark", "py4j"):
            found = importlib.util.find_spec(package)
            assert found is not None
            assert found.origin is not None
            (target / package).symlink_to(Path(found.origin).parent)
        return
    (asked,) = (
        one for one in map(Requirement, project(CLIENT)["optional-dependencies"]["spark"]) if one.name == "pyspark"
    )
    (lowest,) = (one.version for one in asked.specifier if one.operator == ">=")
    _install(environment, f"pyspark=={lowest}")


def add_pip(folder: Path, python: Path, version: str) -> Path:
    """An environment in `folder` with this pip and what builds the distributions; returns its interpreter."""
    _uv("venv", "--quiet", "--no-project", "--python", python, folder)
    made = Environment(folder)
    _install(made, f"pip=={version}", *_build_requirements())
    return made.python


def _build_requirements() -> list[str]:
    asked: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    return asked


def _install(environment: Environment, *words: str | Path) -> None:
    """Install what uv's cache has, and only if something is missing there, ask the registry.

    Online, uv asks after ten minutes whether each page of the registry has changed. Where a mirror always answers with
    the page, uv builds PySpark anew.
    """
    command: list[str | Path] = ["pip", "install", "--quiet", "--python", environment.python, *words]
    if _run_uv(*command, "--offline").returncode != 0:
        _uv(*command)


def _pinned(python: Path, requirements: Sequence[str], resolution: Resolution) -> Path:
    """The file that pins uv's first resolution of these requirements."""
    asked = json.dumps([_version(python), resolution, sorted(requirements)])
    file = cache_folder() / "resolved" / f"{hashlib.sha256(asked.encode()).hexdigest()[:16]}.txt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            source, chosen = Path(scratch, "requirements.in"), Path(scratch, "chosen.txt")
            source.write_text("\n".join(requirements) + "\n", encoding="utf-8")
            _uv(
                "pip", "compile", "--quiet", source, "--python", python, "--resolution", resolution,
                "--only-binary", ":all:", "--output-file", chosen, "--no-header", "--no-emit-index-url",
            )  # fmt: skip
            chosen.replace(file)
    return file


def _uv(*words: str | Path) -> str:
    done = _run_uv(*words)
    assert done.returncode == 0, f"uv {' '.join(str(word) for word in words)}:\n{done.stderr}"
    return done.stdout


def _run_uv(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "uv", *words],
        env=os.environ | {"UV_CACHE_DIR": str(cache_folder() / "uv"), "UV_PYTHON_DOWNLOADS": "never"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
