"""The rows of a file of JSON lines where single lines may be bad: the others are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from committerd.commands.append.formats import lines_of, rows_of_lines
from committerd.commands.append.sources import Source, unreadable
from committerd.errors import SourceError
from committerd_client import json_text
from committerd_client.casting import nulls
from committerd_client.errors import StagingError
from committerd_ingest.decoding import no_object, text_of_objects
from committerd_ingest.reading import BadRow

_BAD_MAX = 1000
"""Bad lines of a file, with which it counts as bad itself."""
_MISFITS = (pa.ArrowException, StagingError, ValueError, RecursionError)

Check = Callable[[pa.Table, pa.Schema], object]
"""Raises `StagingError` for rows that do not fit; the schema is that of the rows, as the reader is told it."""


def good_lines(source: Source, table: pa.Schema, check: Check) -> Iterator[tuple[pa.Table, Sequence[BadRow]]]:
    """Rows with the columns of `table`, and the lines among them that make none.

    Raises `SourceError` if too many are bad, and for a file that can't be read.
    """
    parsed = pa.schema([(one.name, json_text.parseable(one.type)) for one in table])
    count = 0
    for chunk, first in _chunks(source):
        lines = {number: line for number, line in enumerate(chunk.splitlines(), first) if line.strip()}
        bad: dict[int, str] = {}
        if text_of_objects([line.strip() for line in lines.values()]) is None:
            bad = {number: why for number, line in lines.items() if (why := no_object(line)) is not None}
        left = {number: line for number, line in lines.items() if number not in bad}
        found = _parts(left, table, check, bad, most=_BAD_MAX - count)
        made = [parsed.empty_table(), *(_with_columns_of(parsed, part) for part in found)]
        count += len(bad)
        if count > _BAD_MAX:
            number = min(bad)
            raise SourceError(f"more than {_BAD_MAX:,} lines are bad, such as line {number}: {bad[number]}")
        yield pa.concat_tables(made), [BadRow(number, lines[number], bad[number]) for number in sorted(bad)]


def _chunks(source: Source) -> Iterator[tuple[bytes, int]]:
    """Whole lines, with the number of the first. Raises `SourceError`."""
    try:
        yield from lines_of(source)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(unreadable(source, error)) from error


def _parts(
    lines: Mapping[int, bytes], table: pa.Schema, check: Check, bad: dict[int, str], *, most: int
) -> Iterator[pa.Table]:
    """The rows of these lines, in their order; notes those that are bad. It ends when more than `most` are."""
    if not lines or len(bad) > most:
        return
    numbers = list(lines)
    try:
        rows = rows_of_lines(b"\n".join(lines.values()), numbers[0], table)
        if rows.num_rows != len(lines):
            raise ValueError("the line is no JSON object")
        check(rows, table)
    except _MISFITS as error:
        if len(numbers) == 1:
            bad[numbers[0]] = str(error).removeprefix(f"line {numbers[0]}: ")
            return
        middle = len(numbers) // 2
        for half in (numbers[:middle], numbers[middle:]):
            yield from _parts({number: lines[number] for number in half}, table, check, bad, most=most)
    else:
        yield rows


def _with_columns_of(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """The rows with these columns; those that they lack are null."""
    columns = [
        rows[one.name] if one.name in rows.column_names else pa.chunked_array([nulls(rows.num_rows, one.type)])
        for one in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
