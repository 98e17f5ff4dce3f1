"""Columns of vectors in a new table: the types that a vector index takes.

lancedb's rule: lists of floating-point numbers in a column whose name suggests vectors are vectors of float32.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


def vector_type(name: str, values: Iterable[Any], inferred: pa.DataType) -> Any:
    """The type of a column of Python values, for which pyarrow takes the type `inferred`.

    A list of floating-point numbers under such a name is a vector of float32 (of float16 if it is of these), if all
    lists have the same length.
    """
    import pyarrow as pa
    from pyarrow import types

    if not (_is_named_so(name) and types.is_list(inferred) and types.is_floating(inferred.value_type)):
        return inferred
    sizes = {len(one) for one in values if hasattr(one, "__len__")}
    if len(sizes) != 1 or sizes == {0}:
        return inferred
    return pa.list_(inferred.value_type if types.is_float16(inferred.value_type) else pa.float32(), sizes.pop())


def warn_of_lists(schema: pa.Schema) -> None:
    """Log a warning for each column of a new table that seems to hold vectors, and has a type that no index takes."""
    from pyarrow import types

    for field in schema:
        if not (types.is_list(field.type) or types.is_large_list(field.type)) or not _is_named_so(field.name):
            continue
        if types.is_floating(field.type.value_type) or types.is_integer(field.type.value_type):
            _log.warning(
                "the new table has column %r as %s, which no vector index takes: if it holds vectors, give their type, "
                "as in schema=pa.schema([..., (%r, pa.list_(pa.float32(), SIZE))])",
                field.name,
                field.type,
                field.name,
            )


def _is_named_so(name: str) -> bool:
    return any(part in name.lower() for part in ("vector", "embedding"))
