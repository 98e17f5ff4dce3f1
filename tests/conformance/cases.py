"""The cases: real tables, real staged transactions, and what pylance 4.0.0 or 14.0.2 made of them.

`cases.tar.gz` has a folder for each version of pylance, and in it one for each case:

    dataset/        the table as the committer finds it, staged files in place
    staged.pb       the transaction, as a producer would send it
    expected.json   the outcome and, for a commit, what the new version must be and what pylance reads of it
    mounts/         another table that this one reads through a base, to be put where `expected.json` says

`cases.txt` lists the names of the cases, as `archived` returns them: every process of the tests needs the names, and
only one unpacks the archive.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

ARCHIVE = Path(__file__).with_name("cases.tar.gz")
NAMES = ARCHIVE.with_name("cases.txt")

Tree = Mapping[PurePosixPath, bytes | None]
"""The content of each file below a folder, and None for each folder; a folder comes before what is in it."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case, in memory: a file system takes longer to create the 20,000 files of all cases than the tests to run."""

    tree: Tree
    expected: Mapping[str, Any]

    @property
    def staged(self) -> bytes:
        """The staged transaction."""
        value = self.tree[PurePosixPath("staged.pb")]
        assert value is not None
        return value

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
        return self._copy("dataset", target / "table")

    def mount(self) -> list[Path]:
        """Put the tables that this one reads through a base into their places; return those that were not there."""
        places = (self.expected.get("mounts") or {}).items()
        return [self._copy(source, Path(target)) for target, source in places if not Path(target).exists()]

    def _copy(self, folder: str, target: Path) -> Path:
        target.mkdir(parents=True)
        for path, content in self.tree.items():
            if path != PurePosixPath(folder) and path.is_relative_to(folder):
                copy = target / path.relative_to(folder)
                if content is None:
                    copy.mkdir()
                else:
                    copy.write_bytes(content)
        return target


@cache
def names() -> list[str]:
    """All cases, as `14.0.2/one-main-append_1`."""
    return NAMES.read_text(encoding="utf-8").splitlines()


def archived() -> list[str]:
    """The names of the cases in the archive."""
    return sorted(_trees())


def load(name: str) -> Case:
    tree = _trees()[name]
    return Case(tree, json.loads(tree[PurePosixPath("expected.json")] or b""))


@cache
def _trees() -> Mapping[str, Tree]:
    """Everything in the archive, by case."""
    found: dict[str, dict[PurePosixPath, bytes | None]] = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            case, inside = PurePosixPath(*PurePosixPath(member.name).parts[:2]), PurePosixPath(member.name).parts[2:]
            if inside:
                file = archive.extractfile(member)
                found.setdefault(str(case), {})[PurePosixPath(*inside)] = None if file is None else file.read()
    return found
