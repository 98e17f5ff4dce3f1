"""`make release`: build everything into dist/, and try it."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import distributions
from pathlib import Path

import yaml
from packaging.utils import canonicalize_name

from harness.kafka import kafka_broker
from scripts.programs import ROOT, program, run
from scripts.release.advisories import served
from scripts.release.building import LOCKED, SUMS, build
from scripts.release.trying import committed, installed

DIST = ROOT / "dist"
LOCKS = ROOT / "deploy" / "requirements"
LICENCES = [
    "0BSD", "Apache", "BSD", "CC0", "CNRI-Python", "ISC", "MIT", "MPL-2.0", "Mozilla Public License 2.0", "PSF",
    "Python Software", "Zlib",
    "(LGPLv2+)",  # crc32c, a module of its own, unchanged: anybody can put another one in its place
]  # fmt: skip
"""Parts of the names of licences that lay no duty on programs which use a package."""


def problems(tag: str) -> Iterator[str]:
    """Why a release with this tag may not be made; empty if it may."""
    version = tag.removeprefix("v")
    for folder in ("", "producers"):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        if project["version"] != version:
            yield f"{project['name']} has version {project['version']}"
    about = yaml.safe_load((ROOT / "helm" / "committerd" / "Chart.yaml").read_text(encoding="utf-8"))
    if (about["version"], about["appVersion"]) != (version, version):
        yield f"the chart has version {about['version']}, and installs {about['appVersion']}"
    if f"ARG VERSION={version}\n" not in (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8"):
        yield "deploy/Dockerfile has another version"
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        yield "CHANGELOG.md names no date of the version"
    if not re.search(r"^## \[Unreleased\]\s+## ", changes, re.MULTILINE):
        yield "CHANGELOG.md has entries under Unreleased: move them to the version"


def check_licences() -> None:
    """Raises `CalledProcessError` if what is locked for the images has a licence that is not in `LICENCES`."""
    files = ("committerd.txt", "producer.txt", "ingest.txt")
    text = "".join((LOCKS / name).read_text(encoding="utf-8") for name in files)
    locked = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    here = {canonicalize_name(one.name): one.name for one in distributions()}
    print(
        run(
            program("pip-licenses", locked=LOCKED), "--python", sys.executable,
            "--packages", *(here[name] for name in sorted(locked)), "--partial-match",
            "--allow-only", ";".join(LICENCES), "--order", "license",
        )
    )  # fmt: skip


def check_advisories(archive: Path | None = None, *, locks: Path = LOCKS) -> None:
    """Raises `CalledProcessError` if an advisory concerns a package that is locked.

    `archive`: OSV's copy of the advisories (`advisories`); None = PyPI is asked.
    """
    with ExitStack() as stack:
        source = list[str]()
        if archive is not None:
            source = ["--vulnerability-service", "osv", "--osv-url", stack.enter_context(served(archive))]
        for file in sorted(locks.glob("*.txt")):
            print(
                file.name,
                run(
                    program("pip-audit", locked=LOCKED), *source, "--strict", "--disable-pip", "--require-hashes",
                    "--requirement", file, environment={"NO_PROXY": "127.0.0.1"} if source else None,
                ),
            )  # fmt: skip


def main() -> int:
    try:
        return _main()
    except subprocess.CalledProcessError as error:  # what it said is printed already
        print(f"{Path(error.cmd[0]).name} ended with {error.returncode}", file=sys.stderr)
        return 1


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.release")
    parser.add_argument("--tag", help="only check whether a release with this tag may be made")
    parser.add_argument("--licences", action="store_true", help="only check the licences of what is locked")
    parser.add_argument("--advisories", action="store_true", help="only look for advisories about what is locked")
    parser.add_argument("--archive", type=Path, help="OSV's PyPI/all.zip, in which --advisories looks; default: PyPI")
    arguments = parser.parse_args()
    if arguments.tag:
        found = list(problems(arguments.tag))
        print(*found, sep="\n")
        return 1 if found else 0
    if arguments.licences:
        check_licences()
        return 0
    if arguments.advisories:
        check_advisories(arguments.archive)
        return 0
    files = build(DIST)
    with tempfile.TemporaryDirectory(prefix="committerd-release-") as folder, kafka_broker() as kafka:
        python = installed(files, Path(folder, "environment"))
        rows = committed(python, kafka, "release", Path(folder))
    if len(rows) != 2:
        print(f"the table has other rows than were written: {rows}")
        return 1
    print((DIST / SUMS).read_text(encoding="utf-8"), end="")
    print("Installed from an index of these files into an empty environment, it commits.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
