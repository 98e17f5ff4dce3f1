"""What a table must contain: an array instead of a dict, because an hour of writes makes more than a million rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np

EXPECTED = "expected.npy"
"""The file in the folder of a run with what its writers have written."""
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
_NONE: Final = -1
_ROOM: Final = 1 << 16


class Expected:
    """The value of the row with each id from 0 on, or that there is none. Takes 8 bytes for each id."""

    def __init__(self, values: Numbers | None = None) -> None:
        self._values = np.full(_ROOM, _NONE, np.int64) if values is None else values

    def put(self, id_: int, value: int) -> None:
        """There is a row with this id and this value, which is not negative."""
        if id_ >= len(self._values):
            more = np.full(max(len(self._values), id_ + 1 - len(self._values)), _NONE, np.int64)
            self._values = np.concatenate([self._values, more])
        self._values[id_] = value

    def remove(self, id_: int) -> None:
        """There is no row with this id."""
        self._values[id_] = _NONE

    def has(self, id_: int) -> bool:
        """Whether there is a row with this id."""
        return id_ < len(self._values) and bool(self._values[id_] != _NONE)

    def rows(self) -> tuple[Numbers, Numbers]:
        """The ids of all rows, ascending, and their values."""
        ids = np.flatnonzero(self._values != _NONE)
        return ids, self._values[ids]

    def differences(self, ids: Numbers, values: Numbers) -> list[str]:
        """What is wrong with rows that have these ids and values, for people. Ids may be in any order."""
        wanted, numbers = self.rows()
        problems = []
        order = np.argsort(ids, kind="stable")
        ids, values = ids[order], values[order]
        twice = ids[1:][ids[1:] == ids[:-1]]
        if len(twice):
            problems.append(f"{len(twice)} rows are there twice, {twice[:10].tolist()} among them")
        for what, some in (("lost", np.setdiff1d(wanted, ids)), ("too many", np.setdiff1d(ids, wanted))):
            if len(some):
                problems.append(f"{len(some)} rows are {what}, {some[:10].tolist()} among them")
        _, mine, theirs = np.intersect1d(wanted, ids, return_indices=True)
        old = wanted[mine][numbers[mine] != values[theirs]]
        if len(old):
            problems.append(f"{len(old)} rows have another value, {old[:10].tolist()} among them")
        return problems

    def copy(self) -> Expected:
        """Return another one with the same rows."""
        return Expected(self._values.copy())

    def save(self, path: Path) -> None:
        """Write it to a file."""
        np.save(path, self._values)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read it from a file."""
        return cls(np.load(path))
