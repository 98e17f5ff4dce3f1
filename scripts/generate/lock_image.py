"""Lock what deploy/Dockerfile installs, by version and hash, in deploy/requirements/; `--check` only checks, offline.

Both pyproject.toml files say what is locked, and requirements/constraints.txt says at which versions, so the image
holds what the tests have run. uv resolves for the image's Python and for both architectures, whatever runs here: one
file serves both, and a package that has no wheel for one of them is an error.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.generate import ROOT

FOLDER = ROOT / "deploy" / "requirements"
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
PYTHON = "3.13"
"""The Python of the image: Debian 13 has it."""
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)
_ENVIRONMENT = {
    "python_version": PYTHON,
    "python_full_version": f"{PYTHON}.0",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
    "os_name": "posix",
}


def wanted() -> dict[str, list[str]]:
    """What each file must lock, by file name."""
    committer, client = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8")) for folder in ("", "producers")
    )
    of_client = client["project"]["dependencies"]
    of_committer = [
        one for one in committer["project"]["dependencies"] if not one.startswith(client["project"]["name"])
    ]
    extras = committer["project"]["optional-dependencies"]
    files = {
        "committerd.txt": [*of_committer, *extras["azure"], *extras["gcs"], *extras["otel"], *of_client],
        "producer.txt": [*of_client, *client["project"]["optional-dependencies"]["lance"]],
        "ingest.txt": [one for one in extras["ingest"] if not one.startswith(client["project"]["name"])],
        "build.txt": committer["build-system"]["requires"],
    }
    return {name: [one for one in asked if _applies(Requirement(one), "")] for name, asked in files.items()}


def locked(text: str) -> dict[str, str]:
    """Versions in a lock file, by canonical name. Raises `ValueError` for a line that is no version with hashes."""
    rest = _LOCKED.sub("", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    if rest.strip():
        raise ValueError(f"not a version with its hashes: {rest.split()[0]}")
    return {canonicalize_name(name): version for name, version, _ in _LOCKED.findall(text)}


def tested() -> dict[str, str]:
    """The versions that the tests run with."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def needed(requirements: Sequence[str]) -> set[str]:
    """Canonical names of the requirements and of their dependencies, according to the packages installed here."""
    found, waiting = set[tuple[str, str]](), [Requirement(one) for one in requirements]
    while waiting:
        one = waiting.pop()
        for extra in ("", *one.extras):
            name = canonicalize_name(one.name)
            if (name, extra) in found:
                continue
            found.add((name, extra))
            waiting += [other for other in map(Requirement, _requires(name)) if _applies(other, extra)]
    return {name for name, _ in found}


def _requires(name: str) -> Sequence[str]:
    try:
        return requires(name) or ()
    except PackageNotFoundError:  # needed for the build only, which has an environment of its own
        return ()


def _applies(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is None or bool(marker.evaluate({**_ENVIRONMENT, "extra": extra}))


def problems(name: str, requirements: Sequence[str], text: str, exact: Mapping[str, str]) -> Iterator[str]:
    """The problems of a lock file; none if it locks exactly what is needed, at versions that fit."""
    try:
        versions = locked(text)
    except ValueError as error:
        yield f"{name}: {error}"
        return
    for one in map(Requirement, requirements):
        version = versions.get(canonicalize_name(one.name))
        if version is None or version not in one.specifier:
            yield f"{name}: {one} is asked for in pyproject.toml and {version or 'nothing'} is locked"
    for package, version in versions.items():
        if exact.get(package) != version:
            yield f"{name}: {package} {version} is locked and {exact.get(package)} is in {CONSTRAINTS.name}"
    need = needed(requirements)
    for package in sorted(need - versions.keys()):
        yield f"{name}: {package} is needed and not locked"
    if name != "build.txt":  # dependencies of a build requirement are not installed here
        for package in sorted(versions.keys() - need):
            yield f"{name}: {package} is locked and not needed"


def lock(name: str, requirements: Sequence[str]) -> None:
    """Write one file. Versions change only if constraints.txt or pyproject.toml did."""
    with tempfile.TemporaryDirectory(prefix="committerd-lock-") as folder:
        source = Path(folder, "requirements.in")
        source.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        found = set[str]()
        for platform in PLATFORMS:
            command: list[str | Path] = [
                sys.executable, "-m", "uv", "pip", "compile", source, "--output-file", FOLDER / name, "--quiet",
                "--constraint", CONSTRAINTS, "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url",
                "--only-binary", ":all:", "--python-version", PYTHON, "--python-platform", platform,
                "--no-python-downloads",
            ]  # fmt: skip
            subprocess.run(command, check=True, cwd=ROOT)
            found.add((FOLDER / name).read_text(encoding="utf-8"))
        assert len(found) == 1, f"{name}: the platforms {', '.join(PLATFORMS)} need different packages"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail when a file differs")
    check, exact = parser.parse_args().check, tested()
    found: list[str] = []
    for name, requirements in wanted().items():
        if not check:
            lock(name, requirements)
        found += problems(name, requirements, (FOLDER / name).read_text(encoding="utf-8"), exact)
    for problem in found:
        print(problem)
    if found and check:
        print("deploy/requirements/ is not what pyproject.toml and constraints.txt say: run `make lock`")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
