"""Keys of each type with their hashes, for docs/wire-vectors.json: `blake2b-8` of the wire contract, spelt out.

This is a second implementation, without Arrow or numpy. tests/producers/test_key_vectors.py compares the client's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

ABOUT = (
    "The hash `blake2b-8` (property committerd.key-hash) of keys of each type. `types` are the Arrow types of the key's"
    " columns in the table, in the order of their field ids; `values` are their values in words. `encoded` is what is "
    "hashed, in hexadecimal, and `hash` is the number in the filter's key_hashes."
)


def _little(value: int, width: int) -> bytes:
    return (value % (1 << (8 * width))).to_bytes(width, "little")


def _keys() -> Iterator[tuple[str, str, bytes | None]]:
    """(type, value in words, bytes of the value; None = null) of keys of one column."""
    for bits in (8, 16, 32, 64):
        yield f"int{bits}", "-2", _little(-2, bits // 8)
        yield f"uint{bits}", str(2**bits - 1), _little(2**bits - 1, bits // 8)
    yield "bool", "true", b"\1"
    yield "bool", "false", b"\0"
    yield "halffloat", "1.5", struct.pack("<e", 1.5)
    for name, shape in (("float", "<f"), ("double", "<d")):
        yield name, "-1.5", struct.pack(shape, -1.5)
        yield name, "0.0, and -0.0 too", struct.pack(shape, 0.0)
        yield name, "NaN, whatever its bits", struct.pack(shape, float("nan"))
    for name in ("string", "large_string"):
        yield name, "Zoë", "Zoë".encode()
        yield name, "the empty string", b""
    for name in ("binary", "large_binary", "fixed_size_binary[2]"):
        yield name, "the bytes 00 ff", b"\0\xff"
    yield "date32[day]", "2026-10-30", _little(20756, 4)
    yield "date64[ms]", "2026-10-30", _little(20756 * 86_400_000, 8)
    yield "time32[s]", "23:30:00", _little(84_600, 4)
    yield "time32[ms]", "23:30:00", _little(84_600_000, 4)
    yield "time64[us]", "23:30:00", _little(84_600_000_000, 8)
    yield "time64[ns]", "23:30:00", _little(84_600_000_000_000, 8)
    for unit, factor in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        yield f"timestamp[{unit}]", "1969-12-31T23:59:59", _little(-factor, 8)
        yield f"timestamp[{unit}, tz=UTC]", "2026-10-30T00:00:00Z", _little(20756 * 86_400 * factor, 8)
        yield f"duration[{unit}]", "1 second", _little(factor, 8)
    yield "decimal128(9, 2)", "-1.55", _little(-155, 16)
    yield "decimal256(40, 2)", "1.55", _little(155, 32)
    yield "dictionary<values=string, indices=int8, ordered=0>", "the string x, as in a column of strings", b"x"
    yield "int64", "null", None


def _encoded(value: bytes | None) -> bytes:
    return b"\0" if value is None else b"\1" + struct.pack("<I", len(value)) + value


def _shown(types: Sequence[str], values: Sequence[str], encoded: bytes) -> dict[str, Any]:
    number = int.from_bytes(blake2b(encoded, digest_size=8).digest(), "little")
    return {"types": list(types), "values": list(values), "encoded": encoded.hex(), "hash": str(number)}


def key_vectors() -> list[dict[str, Any]]:
    """The keys, as docs/wire-vectors.json shows them."""
    made = [_shown([kind], [words], _encoded(value)) for kind, words, value in _keys()]
    first, second = _encoded(_little(7, 8)), _encoded(b"x")
    made.append(_shown(["int64", "string"], ["7", "x"], first + second))
    made.append(_shown(["int64", "string"], ["null", "x"], _encoded(None) + second))
    return made
