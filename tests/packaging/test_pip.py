"""What the pages say to install in a clone can be installed by each pip that a supported Python brings.

Whether it can is a matter of pip's resolver, so the packages of others are empty wheels here.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.packaging.environments import CLIENT, COMMITTER, ROOT, add_pip, interpreters, project

PIP_OF = {"3.10": "21.2.3", "3.11": "22.3", "3.12": "23.2.1", "3.13": "24.2", "3.14": "25.2"}
"""The lowest pip that a release of this Python brings."""
OTHERS = [("3.11", "23.0.1")] if "3.11" in interpreters() else []
"""Of Debian 12. That of Python 3.11.7 is the same as Python 3.12's."""
PAGES = [ROOT / "README.md", ROOT / "producers" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _lines() -> list[str]:
    """Every `pip install` of something in the clone, on any page."""
    found = (
        line
        for page in PAGES
        for line in re.findall(r"pip install ([^`#)\n]*)", page.read_text(encoding="utf-8"))
        if any(word.startswith(".") for word in shlex.split(line))
    )
    return list(dict.fromkeys(line.strip() for line in found))


LINES = _lines()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty wheel of each package that the two distributions require, of the lowest version that both allow."""
    folder = tmp_path_factory.mktemp("wheels")
    lowest: dict[str, str] = {}
    for table in (project(COMMITTER), project(CLIENT)):
        extras = [one for some in table["optional-dependencies"].values() for one in some]
        for asked in map(Requirement, [*table["dependencies"], *extras]):
            floor = (
                next(one.version for one in asked.specifier if one.operator in (">=", "==")) if asked.specifier else "0"
            )
            lowest[asked.name] = max(lowest.get(asked.name, "0"), floor, key=Version)
    for name in lowest.keys() - {"committerd-client"}:
        written = name.replace("-", "_")
        about = f"{written}-{lowest[name]}.dist-info"
        with zipfile.ZipFile(folder / f"{written}-{lowest[name]}-py3-none-any.whl", "w") as wheel:
            offered = "".join(f"Provides-Extra: {extra}\n" for extra in ("crc32c", "data", "sql"))
            wheel.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {lowest[name]}\n{offered}"
            )
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
    return folder


@pytest.mark.parametrize(
    ("python", "pip"),
    [
        pytest.param(python, pip, marks=() if number == 0 else pytest.mark.long)
        for number, (python, pip) in enumerate([*((one, PIP_OF[one]) for one in interpreters()), *OTHERS])
    ],
)
def test_each_line_of_the_pages_is_resolved(python: str, pip: str, environment_folder: Path, wheels: Path) -> None:
    program = add_pip(environment_folder, interpreters()[python], pip)
    done = [
        (line, _pip(program, line, wheels, environment_folder))
        for line in LINES
        if python >= "3.11" or all(word.startswith("./producers") for word in shlex.split(line))  # the client alone
    ]
    assert {line: error for line, error in done if error} == {}
    assert any("./producers[lance]" in line for line, _ in done)


def _pip(program: Path, line: str, wheels: Path, folder: Path) -> str:
    """Resolve and build what a line asks for; the error, empty if there is none."""
    done = subprocess.run(
        [
            program, "-I", "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-build-isolation",
            "--no-index", "--find-links", wheels, "--wheel-dir", folder / "built", *shlex.split(line),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.stderr if done.returncode else ""
