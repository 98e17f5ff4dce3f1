"""Takes rows in any form that Python programs use, and fits them to a table's schema.

Columns match by name, and so do the fields of structs; their order does not matter. A column of the table that the rows
don't have stays null. Values are cast to the table's types without loss (`casting`), and a value that does not fit is
an error that names its column.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from committerd_client.casting import cast, narrowed, nulls, require_known, require_not_null
from committerd_client.errors import StagingError
from committerd_client.values import array, from_numpy, inferred
from committerd_client.vectors import vector_type

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowStream(Protocol):
    """A table or a reader of record batches: pyarrow's, pandas', polars', DuckDB's, ..."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class ArrowArray(Protocol):
    """A record batch."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...


class ArrowSchema(Protocol):
    """A schema of Arrow."""

    def __arrow_c_schema__(self) -> Any: ...


class Scannable(Protocol):
    """A dataset of Lance or of pyarrow."""

    def scanner(self) -> Any: ...


Data: TypeAlias = (
    "ArrowStream | ArrowArray | Scannable | Iterable[ArrowArray] | Iterable[Mapping[str, Any]] | Mapping[str, Any]"
)
"""Rows: an Arrow table, record batch or reader, a list of record batches, a pandas or polars DataFrame, a Lance or
pyarrow dataset, a list of dicts (one for each row), or a dict of columns."""

_TAKEN = (
    "an Arrow table, record batch or reader, a pandas or polars DataFrame, a Lance dataset, a list of dicts or a dict "
    "of columns"
)
_PANDAS_METADATA = b"pandas"


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in some form. `read` returns them as Arrow."""

    names: tuple[str, ...]
    """The columns."""
    count: int | None
    """Number of rows; None = not known before they are read."""
    again: bool
    """Whether they can be read more than once."""
    open: Callable[[Mapping[str, pa.Field], bool], pa.RecordBatchReader]
    """Makes the reader. It gets the fields of the table, which give Python objects their types, and whether the fields
    of structs that they don't have are added."""

    def read(
        self, target: pa.Schema | None = None, *, fill: bool = False, fill_structs: bool = True, adds: bool = True
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The rows, with the types of the table's schema `target` if it is given: (schema, batches).

        `fill`: whether to add the columns of `target` that the rows don't have, as nulls. `fill_structs`: whether to
        add the fields of structs, at any depth, that the rows don't have. `adds`: whether the rows may be added to the
        table, and must therefore have the columns that may not be null.

        Raises `StagingError` (`schema_differs`) for columns that the table does not have or requires. The batches raise
        it for values that don't fit.
        """
        if target is None:
            return _without_pandas(self.open({}, True))
        self._check_names(target, adds=adds)
        reader = self.open({field.name: field for field in target}, fill_structs)
        schema, batches = _cast(reader, target, fill_structs=fill_structs)
        return _filled(schema, batches, target) if fill else (schema, batches)

    def table(self, target: pa.Schema | None = None, *, fill_structs: bool = True, adds: bool = True) -> pa.Table:
        """All rows in memory; as `read` otherwise."""
        import pyarrow as pa

        schema, batches = self.read(target, fill_structs=fill_structs, adds=adds)
        return pa.Table.from_batches(batches, schema)

    def _check_names(self, target: pa.Schema, *, adds: bool) -> None:
        require_known(self.names, target.names)
        if not adds or (not self.names and self.count == 0):
            return
        for field in target:
            if not field.nullable and field.name not in self.names:
                raise StagingError(
                    f"the rows have no column {field.name!r}, which may not be null in the table", code="schema_differs"
                )


def rows_of(data: Any) -> Rows:
    """The rows of any `Data`. Raises `TypeError` for anything else. Reads an iterator of rows or batches to its end."""
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return Rows(tuple(data.schema.names), data.num_rows, True, lambda *_: data.to_reader())
    if isinstance(data, pa.RecordBatch):
        return rows_of(pa.Table.from_batches([data]))
    if isinstance(data, pa.RecordBatchReader):
        return Rows(tuple(data.schema.names), None, False, lambda *_: data)
    if isinstance(data, Mapping):
        return _columns(data)
    if isinstance(data, pa.Array | pa.ChunkedArray) or _is_frame(data, "pandas", "Series"):
        raise TypeError(f"{_TAKEN} is needed, and {_described(data)} has no column's name: give {{'name': values}}")
    if _is_frame(data, "pandas", "DataFrame"):
        return _pandas(data)
    if _is_frame(data, "polars", "DataFrame"):
        return rows_of(data.to_arrow())
    if hasattr(data, "scanner"):
        return Rows(tuple(data.schema.names), None, True, lambda *_: data.scanner().to_reader())
    if hasattr(data, "to_reader"):  # a scanner of Lance or pyarrow
        return Rows(tuple(data.projected_schema.names), None, True, lambda *_: data.to_reader())
    if hasattr(data, "__arrow_c_stream__"):
        return rows_of(pa.table(data))
    if hasattr(data, "__arrow_c_array__"):
        return rows_of(pa.record_batch(data))
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | pa.Schema):
        return _items(list(data))
    raise TypeError(f"{_TAKEN} is needed, not {_described(data)}")


def schema_of(given: Any) -> Any:
    """A schema, or None. Raises `TypeError` for anything else."""
    if given is not None and not is_schema(given):
        raise TypeError(f"schema takes a pyarrow schema, such as pa.schema({{'id': pa.int64()}}), not {given!r}")
    return given


def is_schema(given: Any) -> bool:
    """Whether it is a schema of pyarrow or pylance, and not rows."""
    import pyarrow as pa

    return isinstance(given, pa.Schema) or type(given).__name__ == "LanceSchema"


def _is_frame(data: Any, library: str, name: str) -> bool:
    """Whether it is of that class of the library, which is not imported for that."""
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(data).__mro__]
    return (library, name) in kinds


def _described(data: Any) -> str:
    kind = f"{type(data).__module__}.{type(data).__name__}".removeprefix("builtins.")
    if kind.startswith("pyspark."):
        return f"{kind}: call its toArrow(), or write it with committerd_spark"
    if kind.startswith("polars."):
        return f"{kind}: call its collect()"
    if kind == "pyarrow.lib.Schema":
        return f"{kind}: create(schema) makes a table without rows, and schema.empty_table() has no rows"
    if isinstance(data, str) or hasattr(data, "__fspath__"):
        return f"the path {str(data)!r}: read the file, for example with pyarrow.parquet, or use `committerd append`"
    return kind


def _items(items: list[Any]) -> Rows:
    """Rows of a list: one dict for each row, or record batches."""
    import pyarrow as pa

    kinds = set(map(type, items))
    if all(issubclass(kind, Mapping) for kind in kinds):
        if not items:
            return _none()
        orders = dict.fromkeys(map(tuple, items))
        names = tuple(dict.fromkeys(itertools.chain.from_iterable(orders)))
        if not names:
            raise StagingError("the rows have no columns", code="schema_differs")
        if len(orders) == 1 and kinds == {dict}:  # several times as fast as a look-up for each value
            values = list(itertools.chain.from_iterable(map(dict.values, items)))
            columns = {name: values[place :: len(names)] for place, name in enumerate(names)}
        else:
            columns = {name: [one.get(name) for one in items] for name in names}
        return _objects(columns, len(items))
    batches = [batch for one in items for batch in (one.to_batches() if isinstance(one, pa.Table) else [one])]
    others = [one for one in batches if not isinstance(one, pa.RecordBatch)]
    if others:
        odd = next((one for one in others if not isinstance(one, Mapping)), others[0])  # in a list of dicts
        raise TypeError(f"{_TAKEN} is needed, not a list with {_described(odd)}")
    return rows_of(pa.Table.from_batches(batches))


def _none() -> Rows:
    """No rows, of whatever schema the table has."""
    import pyarrow as pa

    return Rows((), 0, True, lambda fields, _: pa.RecordBatchReader.from_batches(pa.schema(list(fields.values())), []))


def _columns(columns: Mapping[str, Any]) -> Rows:
    if not columns:
        return _none()
    for name, values in columns.items():
        if (
            isinstance(values, str | bytes | Mapping)
            or not hasattr(values, "__len__")
            or getattr(values, "ndim", 1) == 0
        ):
            raise TypeError(
                f"a dict has a list of values for each column, and {name!r} has {values!r}. One row is a list with one "
                "dict: [row]. For a schema, give pa.schema(...)"
            )
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise StagingError(f"the columns have different numbers of rows: {lengths}", code="schema_differs")
    return _objects(columns, next(iter(lengths.values()), 0))


def _pandas(frame: Any) -> Rows:
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()  # a named index is a column to pandas' users; the other kind counts rows
    names = [str(name) for name in frame.columns]
    require_known(names, names)  # 1 and "1" are two columns to pandas
    return _objects({name: frame.iloc[:, place] for place, name in enumerate(names)}, len(frame))


def _objects(columns: Mapping[str, Any], count: int) -> Rows:
    """Rows whose columns are Python objects or arrays: the table's types are theirs."""
    require_known(columns, list(columns))

    def opened(fields: Mapping[str, pa.Field], fill_structs: bool) -> pa.RecordBatchReader:
        import pyarrow as pa

        made = [_array(name, values, fields.get(name), fill_structs) for name, values in columns.items()]
        return pa.table(made, names=list(columns)).to_reader()

    return Rows(tuple(columns), count, True, opened)


def _array(name: str, values: Any, field: pa.Field | None, fill_structs: bool = True) -> Any:
    """A column. Without `field` its type is that of the values."""
    import pyarrow as pa

    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    from_pandas = _is_frame(values, "pandas", "Series")
    try:
        if not _is_of_objects(values):
            return _from_arrays(values)
        if field is None:
            field = pa.field(name, vector_type(name, values, inferred(values, from_pandas=from_pandas)))
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise StagingError(f"column {name!r}: {error}", code="schema_differs") from error
    return array(values, field, fill=fill_structs, from_pandas=from_pandas)


def _is_of_objects(values: Any) -> bool:
    """Whether the column consists of Python objects, and not of an array's values."""
    kind = getattr(values, "dtype", None)
    if kind is not None:
        return str(kind) == "object" or getattr(kind, "names", None) is not None
    return not hasattr(values, "__arrow_c_stream__") and not hasattr(values, "__arrow_c_array__")


def _from_arrays(values: Any) -> Any:
    """The column of an array or a series of numpy, pandas, polars or PyTorch."""
    import numpy as np
    import pyarrow as pa

    if hasattr(values, "__arrow_c_stream__") and not hasattr(values, "__arrow_array__"):
        return pa.chunked_array(values)
    if not isinstance(values, np.ndarray) and getattr(values, "ndim", 1) == 1 and hasattr(values, "index"):
        return pa.array(values)  # pandas: NaN is null
    values = values if isinstance(values, np.ma.MaskedArray) else np.asarray(values)
    if values.ndim == 1:
        return from_numpy(values)
    size = int(np.prod(values.shape[1:]))
    flat = pa.FixedSizeListArray.from_arrays(from_numpy(values.ravel()), size)
    if values.ndim == 2:
        return flat
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat.type.value_type, values.shape[1:]), flat)


def _cast(
    reader: pa.RecordBatchReader, target: pa.Schema, *, fill_structs: bool
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The same rows with the target's types."""
    import pyarrow as pa

    wanted = [target.field(given.name) for given in reader.schema]
    if not fill_structs:
        wanted = [narrowed(given.type, field) for given, field in zip(reader.schema, wanted, strict=True)]
    schema = pa.schema(wanted)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            columns = [cast(column, field) for column, field in zip(batch.columns, wanted, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return schema, batches()


def _filled(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], target: pa.Schema
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows with all columns of `target`, in its order."""
    import pyarrow as pa

    places = [schema.get_field_index(field.name) for field in target]
    full = pa.schema(
        [field if place < 0 else schema.field(place) for place, field in zip(places, target, strict=True)],
        metadata=target.metadata,
    )

    def filled() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [
                nulls(batch.num_rows, field.type) if place < 0 else batch.column(place)
                for place, field in zip(places, full, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=full)

    return full, filled()


def _without_pandas(reader: pa.RecordBatchReader) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows without the schema metadata that only pandas understands."""
    import pyarrow as pa

    metadata = dict(reader.schema.metadata or {})
    metadata.pop(_PANDAS_METADATA, None)
    schema = reader.schema.with_metadata(metadata or None)
    return schema, (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in reader)


def scalars(values: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Python values by column, as scalars of the columns' types. Raises `StagingError` for values that don't fit."""
    names = schema.names
    for name in values:
        if name not in names:
            raise StagingError(f"there is no column {name!r} in the table; it has {', '.join(names)}", code="column")
    made = {name: array([value], schema.field(name)) for name, value in values.items()}
    for name, column in made.items():
        require_not_null(column, schema.field(name))
    return {name: column[0] for name, column in made.items()}
