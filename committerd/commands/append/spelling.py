"""Which types the columns of a CSV file have, where there is no table yet that says it. No I/O.

A column is more than text only if the type loses nothing of any value: `7` is a number, `007`, `+49`, `TRUE` and 23
digits are texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_KINDS: tuple[tuple[pa.DataType, str], ...] = (
    (pa.bool_(), "^(true|false)$"),
    (pa.int64(), "^(0|-?[1-9][0-9]{0,17})$"),  # 18 digits always fit
    (pa.float64(), r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?$"),
    (pa.date32(), f"^{_DAY}$"),
    (pa.timestamp("us"), f"^{_DAY}[ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\\.[0-9]{{1,6}})?$"),
)
"""Types, each with the spelling that all values must have; the first that fits counts."""
_DIGITS = 15
"""Digits that a double keeps."""


class Spelling:
    """Which types the values of each column may have, by the values that it has seen."""

    def __init__(self, names: Sequence[str]) -> None:
        self._kinds = {name: list(_KINDS) for name in names}
        self._seen = set[str]()

    def add(self, texts: pa.RecordBatch) -> None:
        """Look at more values, which are texts."""
        for name, column in zip(texts.schema.names, texts.columns, strict=True):
            values = column.drop_null()
            if len(values):
                self._seen.add(name)
                self._kinds[name] = [one for one in self._kinds[name] if _all_are(values, *one)]

    def schema(self) -> pa.Schema:
        """The types; text for a column without values."""
        return pa.schema(
            [
                (name, kinds[0][0] if name in self._seen and kinds else pa.string())
                for name, kinds in self._kinds.items()
            ]
        )


def _all_are(values: pa.Array, kind: pa.DataType, pattern: str) -> bool:
    if not pc.all(pc.match_substring_regex(values, pattern)).as_py():
        return False
    if pa.types.is_float64(kind):
        digits = pc.utf8_length(pc.replace_substring_regex(values, "[-.]", ""))
        return bool(pc.max(digits).as_py() <= _DIGITS)
    if pa.types.is_temporal(kind):
        try:
            values.cast(kind)
        except pa.ArrowException:  # a 30th of February
            return False
    return True
