"""The schema of a version, and what checks have found out about it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Sized
from functools import cached_property
from typing import Any, TypeVar, TypeVarTuple

from committerd_common.messages import Field

_FINDINGS_MAX = 16
"""The most findings that are kept. As a rule the files of a table are of few kinds; a hostile producer makes many.
"""
_LENGTH_MAX = 100_000
"""What depends on more ids and bytes than this is not kept: a producer may list millions of columns."""

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
        self._findings: dict[Hashable, Any] = {}

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

        It is computed once for the last few arguments, unless these are long. An exception is not kept.
        """
        if sum(len(one) for one in of if isinstance(one, Sized)) > _LENGTH_MAX:
            return find(self, *of)
        key = find, *of
        if key in self._findings:
            found: T = self._findings[key]
            return found
        found = find(self, *of)
        if len(self._findings) >= _FINDINGS_MAX:
            self._findings.clear()
        self._findings[key] = found
        return found
