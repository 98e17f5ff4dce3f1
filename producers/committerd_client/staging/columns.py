"""Add, drop, rename and retype columns."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from committerd_client import arguments
from committerd_client.headers import Staged
from committerd_client.staging.branches import takes_branches
from committerd_client.staging.config import field_at
from committerd_client.staging.errors import StagingError
from committerd_client.staging.fragments import at_once, fragment, lance_schema, quoted
from committerd_client.staging.transactions import ReadTable, read_table
from committerd_client.staging.uncommitted import would_commit
from committerd_common.backports import NotRequired
from committerd_common.messages import DataFragment, Field, Transaction
from committerd_common.uris import local_folder

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import LanceFragment
    from lance.schema import LanceSchema
    from lance.udf import BatchUDF

Transforms: TypeAlias = (
    "Mapping[str, str] | BatchUDF | Callable[[pa.RecordBatch], pa.RecordBatch] | pa.Field | list[pa.Field] | pa.Schema"
)
"""SQL expressions by the name of the new column; a function of batches; or Arrow fields of columns that are all null.
"""

_MANY_FRAGMENTS, _SMALL_FRAGMENT_ROWS = 16, 100_000
_SYSTEM_COLUMNS = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)
"""Lance: lib.rs, is_system_column."""
_MEM_WAL = "__lance_mem_wal"  # Lance: mem_wal.rs
_ALTERABLE = frozenset({"path", "name", "nullable", "data_type"})
_SQL_TYPES = {
    "bool": "Boolean",
    "int8": "Int8",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "uint8": "UInt8",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "halffloat": "Float16",
    "float": "Float32",
    "double": "Float64",
    "string": "Utf8",
    "large_string": "LargeUtf8",
    "binary": "Binary",
    "large_binary": "LargeBinary",
    "date32[day]": "Date32",
    "date64[ms]": "Date64",
}
"""What the SQL function `arrow_cast` calls a type of Arrow. It casts as pylance's `alter_columns` does."""


class Alteration(TypedDict):
    """The change of one column, as in `dataset.alter_columns`."""

    path: str
    name: NotRequired[str]
    nullable: NotRequired[bool]
    data_type: NotRequired[pa.DataType]


@takes_branches
def add_columns(
    dataset: lance.LanceDataset,
    transforms: Transforms,
    *,
    read_columns: list[str] | None = None,
    batch_size: int | None = None,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Staged:
    """Add columns to all rows, as `dataset.add_columns` does.

    `read_columns`, `batch_size`: the input of a function. Rows that others append meanwhile lack the new columns, so
    the outcome is RETRYABLE then; it is RETRYABLE after any other change of rows too.

    Raises `StagingError` for names that exist already, for legacy files, and for a table without rows, unless the
    columns are given as Arrow fields.
    """
    import pyarrow as pa

    table = read_table(dataset)
    transaction = table.transaction(uuid, properties)
    if isinstance(transforms, pa.Field):
        transforms = pa.schema([transforms])
    elif isinstance(transforms, list) and all(isinstance(one, pa.Field) for one in transforms):
        transforms = pa.schema(transforms)
    _check_transforms(table, transforms)
    if isinstance(transforms, pa.Schema):
        fragments, fields = list(table.fragments()), _with_null_columns(dataset, table, transforms)
    else:
        table.refuse_legacy("add_columns")
        given: Any = dict(transforms) if isinstance(transforms, Mapping) else transforms
        fragments, fields = _merged(dataset, table, given, read_columns=read_columns, batch_size=batch_size)
    return _merge(table, transaction, fragments, fields)


@takes_branches
def drop_columns(
    dataset: lance.LanceDataset,
    columns: str | Iterable[str],
    *,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Staged:
    """Drop a column or several by path, nested ones too. Their data stays in the files until these are rewritten.

    A struct whose last field is dropped goes too, as in pylance.

    Raises `StagingError` for unknown columns, and if no column would be left.
    """
    table = read_table(dataset)
    names = arguments.names(columns, "drop_columns")
    if not names:
        raise StagingError("drop_columns got no column", code="nothing_to_stage")
    dropped = {field_at(table, path).id for path in names}
    kept: list[Field] = []
    for one in table.manifest.fields:  # parents come before their children
        if one.id in dropped or one.parent_id in dropped:
            dropped.add(one.id)
        else:
            kept.append(one)
    kept = _without_childless(kept, {one.parent_id for one in table.manifest.fields})
    _refuse_empty(kept)
    transaction = table.transaction(uuid, properties)
    transaction.project.schema.extend(kept)
    transaction.project.preserves_nullability = True
    return table.staged(transaction)


@takes_branches
def alter_columns(
    dataset: lance.LanceDataset,
    *alterations: Alteration,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Staged:
    """Change the names, nullability or types of columns, as `dataset.alter_columns` does.

    A new type rewrites the column, which must be a top-level one without an index. No other change writes data.
    `nullable=False` reads the column.

    Raises `StagingError` for unknown columns, for names that exist already, for a column with nulls that may not be
    null any more (`null_values`), and for all else that pylance refuses; and an error of pylance or pyarrow for values
    that can't be cast.
    """
    table = read_table(dataset)
    transaction = table.transaction(uuid, properties)
    _check_alterations(alterations)
    fields = [_copy(one) for one in table.manifest.fields]
    by_id = {one.id: one for one in fields}
    retyped: dict[int, pa.DataType] = {}
    for alteration in alterations:
        found = by_id[field_at(table, alteration["path"]).id]
        found.name = alteration.get("name", found.name)
        found.nullable = alteration.get("nullable", found.nullable)
        if "data_type" in alteration:
            if found.parent_id != -1:
                raise StagingError(
                    f"column {alteration['path']!r} is nested, and its type can't be changed: add a column at the top "
                    "with staging.add_columns and drop the old one",
                    code="column",
                )
            retyped[found.id] = alteration["data_type"]
    _refuse_names(fields)
    if retyped:
        table.refuse_legacy("alter_columns with a data type")
    _refuse_what_pylance_does(dataset, alterations)
    _check_indices(dataset, table, fields, retyped)
    for alteration in alterations:
        if alteration.get("nullable") is False and field_at(table, alteration["path"]).nullable:
            _refuse_nulls(dataset, alteration["path"])
    if retyped:
        fragments, fields = _retyped(dataset, table, fields, retyped)
        return _merge(table, transaction, fragments, fields)
    transaction.project.schema.extend(fields)
    transaction.project.preserves_nullability = _preserves_nullability(table, fields)
    return table.staged(transaction)


def _check_transforms(table: ReadTable, transforms: Any) -> None:
    """Raise `TypeError` for anything but `Transforms`, and `StagingError` for a name that is taken."""
    import pyarrow as pa

    if isinstance(transforms, Mapping):
        if not all(isinstance(one, str) for pair in transforms.items() for one in pair):
            raise TypeError(
                f"add_columns takes SQL expressions by the name of the new column, not {dict(transforms)!r}: for "
                "columns of nulls, give pa.schema({...})"
            )
    elif not callable(transforms) and not isinstance(transforms, pa.Schema):
        raise TypeError(
            "add_columns takes a dict of SQL expressions, such as {'total': 'price * amount'}, a pyarrow schema, or a "
            f"function of batches, not {transforms!r}"
        )
    if isinstance(transforms, Mapping | pa.Schema):
        names = list(transforms) if isinstance(transforms, Mapping) else transforms.names
        if not names:
            raise StagingError("add_columns got no column", code="nothing_to_stage")
        _refuse_names([*table.top_fields, *(Field(name=name, parent_id=-1) for name in names)])


def _check_alterations(alterations: tuple[Any, ...]) -> None:
    """Raise `TypeError` for anything but an `Alteration`, and `StagingError` for one that changes nothing."""
    import pyarrow as pa

    if not alterations:
        raise StagingError("alter_columns got no change", code="nothing_to_stage")
    for one in alterations:
        if not isinstance(one, Mapping) or "path" not in one:
            raise TypeError(f"alter_columns takes changes such as {{'path': 'id', 'name': 'key'}}, not {one!r}")
        unknown = [name for name in one if name not in _ALTERABLE]
        if unknown:
            raise TypeError(f"alter_columns knows no {unknown[0]!r}: a change has path, name, nullable and data_type")
        if len(one) == 1:
            raise StagingError(
                f"alter_columns: {dict(one)!r} changes nothing; give name, nullable or data_type",
                code="nothing_to_stage",
            )
        if not isinstance(one.get("data_type", pa.null()), pa.DataType):
            raise TypeError(f"data_type takes a type of pyarrow, such as pa.int64(), not {one['data_type']!r}")


def _refuse_what_pylance_does(dataset: lance.LanceDataset, alterations: tuple[Any, ...]) -> None:
    """Raise `StagingError` for changes that pylance refuses whatever the rows are: it makes them on an empty table."""
    import lance

    operation = lance.LanceOperation.Overwrite(dataset.lance_schema, [])
    empty = lance.LanceDataset.commit(f"memory://{uuids.uuid4()}", operation)
    try:
        empty.alter_columns(*map(dict, alterations))
    except (OSError, ValueError) as error:
        text = str(error).partition(", /")[0]  # behind it is a line of pylance's source
        raise StagingError(
            f"pylance refuses alter_columns({', '.join(map(repr, alterations))}): {text}", code="column"
        ) from error


def _check_indices(
    dataset: lance.LanceDataset, table: ReadTable, fields: Iterable[Field], retyped: Mapping[int, Any]
) -> None:
    """Raise `StagingError` for a new type of a column with an index, and for what a MemWAL does not bear."""
    old = {one.id: one for one in table.manifest.fields}
    tightened = [one.name for one in fields if not one.nullable and old[one.id].nullable]
    renamed = [one.name for one in fields if one.name != old[one.id].name and old[one.id].unenforced_primary_key]
    if not (tightened or renamed or retyped):
        return
    for index in dataset.describe_indices():
        if index.name == _MEM_WAL:
            raise StagingError(
                "alter_columns: the table has a MemWAL, whose rows can't be checked against a new type, a new name of "
                "a key or nullable=False: drop the MemWAL first",
                code="column",
            )
        inside = set(index.fields)
        for id in retyped:
            if inside & {id, *(one.id for one in _below(table.manifest.fields, id))}:
                raise StagingError(
                    f"column {old[id].name!r} has index {index.name!r}, which a new type makes useless: drop the index "
                    "first, as in staging.drop_index(dataset, name), and create it again afterwards",
                    code="index",
                )


def _refuse_nulls(dataset: lance.LanceDataset, path: str) -> None:
    """Raise `StagingError` if the column has a null; where a nested column's parent is null, it is null too."""
    for batch in dataset.scanner(columns=[path], scan_in_order=False).to_batches():
        if batch.column(0).null_count:
            raise StagingError(
                f"column {path!r} has nulls, so it can't become nullable=False: give these rows a value with update, "
                "or delete them",
                code="null_values",
            )


def _merge(table: ReadTable, transaction: Transaction, fragments: list[DataFragment], fields: list[Field]) -> Staged:
    _refuse_names(fields)
    operation = transaction.merge
    operation.fragments.extend(fragments)
    operation.schema.extend(fields)
    operation.preserves_nullability = _preserves_nullability(table, fields)
    return table.staged(transaction)


def _preserves_nullability(table: ReadTable, fields: Iterable[Field]) -> bool:
    """Whether rows that were written for the old schema fit these fields: each required field was required before."""
    required = {one.id for one in table.manifest.fields if not one.nullable}
    return all(one.nullable or one.id in required for one in fields)


def _merged(
    dataset: lance.LanceDataset,
    table: ReadTable,
    transforms: Any,
    *,
    read_columns: list[str] | None = None,
    batch_size: int | None = None,
    in_order: bool = True,
) -> tuple[list[DataFragment], list[Field]]:
    """Every fragment with a new file for the new columns, and the schema with these columns.

    `in_order`: whether a function must be called for one fragment after the other, because it may depend on the order.
    """
    if isinstance(transforms, dict):
        in_order = False
        names = [*(one.name for one in table.top_fields), *transforms]

        def add(opened: lance.LanceDataset) -> None:
            opened.add_columns(transforms, batch_size=batch_size)

        if (found := _merged_by_pylance(dataset, table, add, names=names)) is not None:
            return list(found.fragments), list(found.schema)

    def merged(one: LanceFragment) -> tuple[DataFragment, LanceSchema]:
        made, schema = one.merge_columns(transforms, columns=read_columns, batch_size=batch_size)
        return fragment(made), schema

    with ThreadPoolExecutor(1 if in_order else at_once(dataset)) as threads:
        done = list(threads.map(merged, dataset.get_fragments()))
    if not done:
        raise StagingError(
            "the table has no rows to compute columns from: give the new columns as a pyarrow Schema",
            code="nothing_to_stage",
        )
    return [made for made, _ in done], lance_schema(done[-1][1])[0]


def _merged_by_pylance(
    dataset: lance.LanceDataset,
    table: ReadTable,
    change: Callable[[lance.LanceDataset], Any],
    *,
    names: Iterable[str],
) -> Transaction.Merge | None:
    """The Merge that one call of pylance would commit; None if a call for each fragment may be faster, or if it failed.

    `change`: makes the call. `names`: of all columns afterwards. A call for each fragment plans the expressions again,
    which takes as long as computing tens of thousands of rows. One call for all handles the fragments one after the
    other, so it is slow on a remote store and with expensive expressions. It fails if others have changed rows since
    the dataset was opened.
    """
    packed = table.packed_fragments
    if len(packed) < _MANY_FRAGMENTS or local_folder(dataset.uri) is None or dataset.latest_version != table.version:
        return None
    fragments = table.fragments()
    if sum(one.physical_rows for one in fragments) > len(fragments) * _SMALL_FRAGMENT_ROWS:
        return None
    ids, sorted_names = [one.id for one in fragments], sorted(names)

    def expected(transaction: Transaction) -> bool:
        merge = transaction.merge
        return (
            transaction.read_version == table.version
            and [one.id for one in merge.fragments] == ids
            and sorted(one.name for one in merge.schema if one.parent_id == -1) == sorted_names
        )

    try:
        found = would_commit(dataset, change, expected=expected)
    except (OSError, RuntimeError, ValueError, StagingError):
        return None
    return None if found is None else found.merge


def _with_null_columns(dataset: lance.LanceDataset, table: ReadTable, added: pa.Schema) -> list[Field]:
    """The schema with new columns that have no data. Raises `StagingError` for columns that are not nullable."""
    required = [field.name for field in added if not field.nullable]
    if required:
        raise StagingError(
            f"column {required[0]!r} may not be null, so it needs values: give an expression for it", code="column"
        )
    new, _ = lance_schema(added, data_storage_version=dataset.data_storage_version)
    # pylance numbers new fields after the highest id in the schema and the files.
    first = dataset.max_field_id + 1
    for one in new:
        one.id += first
        if one.parent_id != -1:
            one.parent_id += first
    return [*table.manifest.fields, *new]


def _retyped(
    dataset: lance.LanceDataset, table: ReadTable, fields: list[Field], retyped: Mapping[int, pa.DataType]
) -> tuple[list[DataFragment], list[Field]]:
    """Every fragment with a new file for the cast columns, and the schema with these in place of the old ones."""

    old = {one.id: one.name for one in table.manifest.fields}
    renamed = {one.id: one.name for one in fields}

    def alter(opened: lance.LanceDataset) -> None:
        paths = {id: old[id] if old[id].isidentifier() else quoted(old[id]) for id in retyped}
        casts: list[Any] = [{"path": paths[id], "data_type": kind} for id, kind in retyped.items()]
        opened.alter_columns(*casts)

    found = _merged_by_pylance(dataset, table, alter, names=[one.name for one in table.top_fields])
    if found is not None:
        fragments, merged, called = list(found.fragments), list(found.schema), {id: old[id] for id in retyped}
    else:
        fragments, merged, called = _cast_by_fragment(dataset, table, retyped)
    new = {}
    for id, name in called.items():
        top = next(one for one in merged if one.parent_id == -1 and one.name == name)
        new[id] = [top, *_below(merged, top.id)]
    result: list[Field] = []
    for one in fields:
        if one.id in new:
            top = _copy(new[one.id][0])
            top.name, top.nullable = renamed[one.id], one.nullable
            top.metadata.clear()
            for key, value in one.metadata.items():
                top.metadata[key] = value
            result.extend([top, *new[one.id][1:]])
        elif not any(one in _below(fields, id) for id in new):
            result.append(one)
    return fragments, result


def _cast_by_fragment(
    dataset: lance.LanceDataset, table: ReadTable, retyped: Mapping[int, pa.DataType]
) -> tuple[list[DataFragment], list[Field], dict[int, str]]:
    """As `_merged`, for the cast columns, and the temporary names of these by the old field id."""
    import pyarrow as pa
    from lance.udf import batch_udf

    old = {one.id: one.name for one in table.manifest.fields}
    taken = set(old.values())
    temporary = {id: _unused(f"{old[id]}_new", taken) for id in retyped}
    new_schema = pa.schema(
        [pa.field(temporary[id], kind, dataset.schema.field(old[id]).nullable) for id, kind in retyped.items()]
    )
    named = {id: _SQL_TYPES.get(str(kind)) for id, kind in retyped.items()}
    if all(named.values()):  # several times as fast as a function of Python
        casts = {temporary[id]: f"arrow_cast({quoted(old[id])}, '{kind}')" for id, kind in named.items()}
        fragments, merged = _merged(dataset, table, casts)
    else:

        @batch_udf(output_schema=new_schema)
        def cast(batch: pa.RecordBatch) -> pa.RecordBatch:
            columns = [batch.column(old[id]).cast(kind) for id, kind in retyped.items()]
            return pa.RecordBatch.from_arrays(columns, schema=new_schema)

        read = [old[id] for id in retyped]
        fragments, merged = _merged(dataset, table, cast, read_columns=read, in_order=False)
    return fragments, merged, temporary


def _below(fields: Iterable[Field], parent: int) -> list[Field]:
    """The fields that are nested in a field, at any depth."""
    inside, found = {parent}, []
    for one in fields:
        if one.parent_id in inside:
            inside.add(one.id)
            found.append(one)
    return found


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _copy(one: Field) -> Field:
    made = Field()
    made.CopyFrom(one)
    return made


def _without_childless(fields: list[Field], parents: set[int]) -> list[Field]:
    """The fields without those that had children and have none left. `parents`: ids of those that had children."""
    while True:
        there = {one.parent_id for one in fields}
        kept = [one for one in fields if one.id in there or one.id not in parents]
        if len(kept) == len(fields):
            return kept
        fields = kept


def _refuse_empty(fields: list[Field]) -> None:
    if not fields:
        raise StagingError("none would be left: drop the table instead", code="column")


def _refuse_names(fields: Iterable[Field]) -> None:
    """Raise `StagingError` for a name that is there twice, and for one of a column that scans add."""
    seen: set[tuple[int, str]] = set()
    for one in fields:
        if (one.parent_id, one.name) in seen:
            raise StagingError(f"column {one.name!r} would be there twice", code="column")
        if one.parent_id == -1 and one.name in _SYSTEM_COLUMNS:
            raise StagingError(
                f"{one.name!r} is the name of a column that scans add: choose another name", code="column"
            )
        seen.add((one.parent_id, one.name))
