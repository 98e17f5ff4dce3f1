"""Which schemas a Merge may bring.

A Merge brings the whole schema. A field keeps its id, and the data that the table has of it is read by that id: with an
id of another field, readers find data of another type, or values of another column.

Lance 14: validate.rs, merge_schema_valid; 4.0.0 checks nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from committerd.errors import InvalidRequest
from committerd.lance.format.wording import quoted
from committerd.lance.versions.columns import changed_fields, field_type_changed
from committerd.lance.versions.schema import with_relatives
from committerd_common.messages import DataFragment, Field, Manifest

_BOUND = ("nullable", "encoding", "dictionary")
"""What a field may change, apart from its type, only together with its data."""

_File = tuple[str, int | None]


def require_merged_schema(
    schema: Sequence[Field], existing: Mapping[int, DataFragment], fragments: Sequence[DataFragment], latest: Manifest
) -> None:
    """Check that the schema of a Merge fits the version `latest`.

    `existing`: the fragments of `latest` as they will be, by id; `fragments`: these and the new ones. Raises
    `InvalidRequest` (`field_type`, `schema`).
    """
    before = {field.id: field for field in latest.fields}
    for field in schema:
        if field.id in before:
            _require_same_place(before[field.id], field, latest.fields)
    _require_rewritten(schema, existing, latest)
    _require_unused_ids(schema, latest)
    _require_data_for_new_ids(schema, fragments, latest)


def _require_same_place(before: Field, after: Field, schema: Iterable[Field]) -> None:
    if before.parent_id != after.parent_id:
        raise _refused(after, f"it lies in field {after.parent_id}, and lay in field {before.parent_id}")
    for other in schema:
        if (other.parent_id, other.name) == (after.parent_id, after.name) and other.id != after.id:
            raise _refused(after, f"the column of that name has id {other.id}")


def _require_rewritten(schema: Sequence[Field], existing: Mapping[int, DataFragment], latest: Manifest) -> None:
    """Check that a field which its old data does not fit is read from new files, in every fragment."""
    before = {field.id: field for field in latest.fields}
    for field in changed_fields(latest.fields, schema):
        of_field = with_relatives([field.id], latest.fields)
        if not _is_rewritten(field.id, of_field, existing, latest):
            raise field_type_changed(before[field.id], field)
    for field in schema:
        was = before.get(field.id, field)
        if all(getattr(was, name) == getattr(field, name) for name in _BOUND):
            continue
        if not _is_rewritten(field.id, frozenset({field.id}), existing, latest):
            raise _refused(
                field, "whether it may be null, its encoding or its dictionary changes, and its old data stays"
            )


def _is_rewritten(
    field: int, read_with_it: frozenset[int], existing: Mapping[int, DataFragment], latest: Manifest
) -> bool:
    for fragment in latest.fragments:
        merged = existing[fragment.id]
        if not any(field in file.fields for file in merged.files):
            return False
        if not set(_files_with(fragment, read_with_it)).isdisjoint(_files_with(merged, read_with_it)):
            return False
    return True


def _files_with(fragment: DataFragment, fields: frozenset[int]) -> Iterator[_File]:
    """Path and base of the data files that have one of these fields."""
    for file in fragment.files:
        if not fields.isdisjoint(file.fields):
            yield file.path, file.base_id if file.HasField("base_id") else None


def _require_unused_ids(schema: Sequence[Field], latest: Manifest) -> None:
    """Check that no new field has an id that a field has, or had. Data of a dropped column may still be there."""
    known = {field.id for field in latest.fields}
    added = [field for field in schema if field.id not in known]
    if not added:
        return
    highest = max(known, default=-1)
    for fragment in latest.fragments:
        for file in fragment.files:
            highest = max(highest, *file.fields, -1)
    for field in added:
        if field.id <= highest:
            raise _refused(field, f"a new field needs an id above {highest}, the highest that the table has used")


def _require_data_for_new_ids(schema: Sequence[Field], fragments: Sequence[DataFragment], latest: Manifest) -> None:
    """Check that a column which gets another id is written anew: readers would find it empty."""
    known = {field.id for field in latest.fields}
    paths = set(_paths(latest.fields).values())
    inside: dict[int, set[int]] = {}
    for field in reversed(schema):  # children come after their parents
        inside.setdefault(field.id, set()).add(field.id)
        inside.setdefault(field.parent_id, set()).update(inside[field.id])
    for number, path in _paths(schema).items():
        if number in known or path not in paths:
            continue
        for fragment in fragments:
            if not any(not inside[number].isdisjoint(file.fields) for file in fragment.files):
                field = next(one for one in schema if one.id == number)
                raise _refused(field, f"the column had another id, and fragment {fragment.id} has no data of this one")


def _paths(schema: Iterable[Field]) -> dict[int, tuple[str, ...]]:
    """The names of each field and of those that it lies in, by its id."""
    paths: dict[int, tuple[str, ...]] = {-1: ()}
    for field in schema:
        paths[field.id] = (*paths[field.parent_id], field.name)
    del paths[-1]
    return paths


def _refused(field: Field, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the Merge can't have field {field.id} ({quoted(field.name)}): {why}. Take the schema of the table, leave its "
        "fields and their ids as they are, and give new columns the next ids",
        code="schema",
    )
