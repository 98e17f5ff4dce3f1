"""The schema of a version, and what checks have found out about it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Sized
from functools import cached_property
from typing import Any, TypeVar, TypeVarTuple

from committerd_common.messages import Field

_KEPT_BYTES_MAX = 8 * 1024 * 1024
"""The most memory, as estimated, of the arguments whose findings are kept: a producer may list millions of columns."""
_ID_BYTES = 40
"""Memory of an id in a tuple or a set."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class TableSchema:
    """The fields of a version, as a flat list, parents before their children. Nobody changes them.

    The files of many records are checked against the schema of the version on which the next one is formed, and most of
    them name the same columns. So what is found out about the schema, and about a list of columns, is kept for the
    other files, until the next version is formed.
    """

    def __init__(self, fields: Sequence[Field] = ()) -> None:
        self.fields = fields
        self._findings: dict[Hashable, tuple[Any, int]] = {}
        """By function and arguments, in the order in which they were found: the result, and the estimated memory."""
        self._kept_bytes = 0

    @cached_property
    def by_id(self) -> Mapping[int, Field]:
        """Each field, by its id."""
        return {field.id: field for field in self.fields}

    @cached_property
    def ids(self) -> frozenset[int]:
        """The ids of all fields."""
        return frozenset(self.by_id)

    @cached_property
    def highest_id(self) -> int:
        """The highest id of a field; -1 if there are no fields."""
        return max(self.ids, default=-1)

    @cached_property
    def parents(self) -> frozenset[int]:
        """The ids of the fields that have children, and -1 if there are fields."""
        return frozenset(field.parent_id for field in self.fields)

    @cached_property
    def required(self) -> Mapping[int, str]:
        """The names of the columns that have no children and must not be null, by id."""
        return {
            field.id: field.name
            for field in self.fields
            if not field.nullable and field.parent_id == -1 and field.id not in self.parents
        }

    def once(self, find: Callable[[TableSchema, *Ts], T], *of: *Ts) -> T:
        """The result of `find(self, *of)`, which depends on nothing but its arguments.

        It is kept for the next call with the same arguments, unless they take too much memory. The oldest results are
        dropped first. An exception is not kept.
        """
        key = find, *of
        if key in self._findings:
            found: T = self._findings[key][0]
            return found
        found = find(self, *of)
        size = _ID_BYTES + sum(map(_size, of))
        if size <= _KEPT_BYTES_MAX:
            while self._kept_bytes + size > _KEPT_BYTES_MAX:
                _, dropped = self._findings.pop(next(iter(self._findings)))
                self._kept_bytes -= dropped
            self._findings[key] = found, size
            self._kept_bytes += size
        return found


def _size(one: object) -> int:
    """The estimated memory of an argument."""
    if isinstance(one, bytes):
        return len(one)
    return _ID_BYTES * len(one) if isinstance(one, Sized) else _ID_BYTES
