"""The schema of a version, and what checks have found out about it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar, TypeVarTuple

from committerd_common.messages import Field

_FINDINGS_MAX = 16
"""The most findings that a schema keeps. As a rule the files of a table are of few kinds; those of a hostile producer
differ.
"""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class TableSchema:
    """The fields of a version, as a flat list, parents before their children. Nobody changes them.

    The data files of many records are checked against one schema, and most of them name the same columns. So what is
    found out about the schema, and about a list of columns, is kept for the next file.
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
        """The result of `find(self, *of)`, which depends on its arguments alone and is kept."""
        key = find, *of
        try:
            found: T = self._findings[key]
        except KeyError:
            found = find(self, *of)
            if len(self._findings) >= _FINDINGS_MAX:
                self._findings.clear()
            self._findings[key] = found
        return found
