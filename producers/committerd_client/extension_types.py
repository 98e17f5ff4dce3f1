"""Values of the extension types that Lance tables have: UUIDs, JSON, bfloat16, tensors and blobs.

pylance and pyarrow have types for them, and take little else than their own arrays. The functions here make the arrays
that these types store. They raise `ValueError` for values that don't fit.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BLOB = "lance.blob.v2"
UUID = "arrow.uuid"
JSON = ("arrow.json", "lance.json")
BFLOAT16 = "lance.bfloat16"
_INTEGERS = range(-(2**63), 2**64)
"""pylance makes floating-point numbers of other integers in JSON."""


def extension_name(field: pa.Field) -> str:
    """The name of the field's extension type, also if the installed pyarrow does not have that type; or empty."""
    import pyarrow as pa

    if isinstance(field.type, pa.BaseExtensionType):
        return str(field.type.extension_name)
    name: bytes = (field.metadata or {}).get(b"ARROW:extension:name", b"")
    return name.decode()


def uuid_bytes(value: Any) -> bytes | None:
    """The 16 bytes of a UUID, of its text, or of bytes."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, str):
        return uuid.UUID(value).bytes
    raise ValueError(f"{value!r} is not a UUID")


def json_text(value: Any) -> str | None:
    """JSON as text. A text is taken for JSON itself; dicts, lists, numbers and booleans are encoded.

    Raises `ValueError` for what pylance refuses, or stores as another value: integers beyond 64 bits, infinity and NaN.
    """
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode()
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        _loaded(text)
    except (ValueError, TypeError, RecursionError) as error:
        hint = ": a string is json.dumps(string)" if isinstance(value, str) else ""
        raise ValueError(f"{value!r:.80} is not JSON ({error}){hint}") from error
    return text


def _loaded(text: str) -> Any:
    return json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_constant, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError("an object has a name twice")
    return dict(pairs)


def _integer(digits: str) -> int:
    if len(digits) > 20 or int(digits) not in _INTEGERS:
        raise ValueError(f"{digits:.40} has more than 64 bits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if value - value != 0:
        raise ValueError(f"{digits:.40} is out of range")
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def bfloat16_storage(wide: pa.Array) -> tuple[Any, np.ndarray[Any, Any]]:
    """(the 2 bytes of each number of a float64 array, which numbers are out of range). They are rounded to nearest."""
    import numpy as np
    import pyarrow as pa

    empty = wide.is_null().to_numpy(zero_copy_only=False)
    values = wide.fill_null(0.0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", invalid="ignore"):
        bits = values.astype(np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    nans = np.isnan(values)
    rounded[nans] = (bits[nans] >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40)
    lost = np.isfinite(values) & ((rounded & np.uint16(0x7F80)) == np.uint16(0x7F80))
    valid = None if not wide.null_count else pa.py_buffer(np.packbits(~empty, bitorder="little").tobytes())
    made = pa.Array.from_buffers(
        pa.binary(2), len(wide), [valid, pa.py_buffer(rounded.astype("<u2").tobytes())], wide.null_count
    )
    return made, lost


def flat(value: Any, shape: Sequence[int]) -> Any:
    """The numbers of a tensor (array or nested lists of that shape, or a flat list) as a flat numpy array."""
    import numpy as np

    if value is None:
        return None
    if np.ma.is_masked(value):
        raise ValueError("a tensor holds no nulls, and a mask hides some of its numbers")
    # Arrow finds the type of Python's numbers; numpy would change some of them.
    given = np.asarray(value, None if isinstance(value, np.ndarray) else object)
    if given.shape != tuple(shape) and given.shape != (int(np.prod(shape)),):
        raise ValueError(f"a tensor has the shape {list(given.shape)}, and the column the shape {list(shape)}")
    return given.ravel()


def tensor_shape(kind: Any) -> list[int] | None:
    """The shape of a tensor type whose values lie in the order of their axes; None for any other type."""
    shape, order = getattr(kind, "shape", None), getattr(kind, "permutation", None)
    return None if shape is None or (order is not None and list(order) != sorted(order)) else list(shape)
