"""The cases: real tables, real staged transactions, and what pylance 4.0.0 or 14.0.2 made of them.

`cases.tar.gz` has a folder for each version of pylance, and in it one for each case:

    dataset/        the table as the committer finds it, staged files in place
    staged.pb       the transaction, as a producer would send it
    expected.json   the outcome and, for a commit, what the new version must be and what pylance reads of it
    mounts/         another table that this one reads through a base, to be put where `expected.json` says
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ARCHIVE = Path(__file__).with_name("cases.tar.gz")


@dataclass(frozen=True, slots=True)
class Case:
    """One case, in the folder where the archive was unpacked."""

    folder: Path
    expected: Mapping[str, Any]

    @property
    def answers(self) -> list[Mapping[str, Any]]:
        """The accepted results; the first is that of this pylance with all that it knows in memory."""
        with_all = self.expected.get("with_in_memory_info") or self.expected
        # Some cases of 4.0.0 were given to 14.0.2 too; either result is right.
        also = self.expected.get("also")
        return [with_all, also] if also else [with_all]

    @property
    def commit_options(self) -> Mapping[str, Any]:
        return self.expected.get("commit_options") or {}

    def copy_table(self, target: Path) -> Path:
        """A copy of the table that may be changed."""
        return Path(shutil.copytree(self.folder / "dataset", target / "table"))


@contextmanager
def opened() -> Iterator[tarfile.TarFile]:
    """The archive; what is extracted can't leave the folder. Python before 3.11.4 has no filter for that."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        yield archive


@cache
def names() -> list[str]:
    """All cases, as `14.0.2/one-main-append_1`."""
    with opened() as archive:
        found = (Path(name).parent for name in archive.getnames() if name.endswith("/expected.json"))
        return sorted(str(folder) for folder in found)


def unpack(target: Path) -> None:
    with opened() as archive:
        archive.extractall(target)


def load(unpacked: Path, name: str) -> Case:
    folder = unpacked / name
    return Case(folder, json.loads((folder / "expected.json").read_text()))


def mount(unpacked: Path) -> list[Path]:
    """Put the tables that others read through a base into their places; return those that were not there before."""
    made: list[Path] = []
    for name in names():
        case = load(unpacked, name)
        for target, source in (case.expected.get("mounts") or {}).items():
            if not Path(target).exists():
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                made.append(Path(shutil.copytree(case.folder / source, target)))
    return made
