"""Text files of `committerd append`: a value is what stands there, or an error that says where."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pytest

from committerd.commands.append.formats import SourceRows
from committerd.commands.append.sources import Source
from committerd.errors import SourceError

SECOND, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")
NOON = datetime.datetime(2026, 5, 1, 12)  # noqa: DTZ001
AWARE = NOON.replace(tzinfo=datetime.UTC)


def read(path: Path, kind: str, text: str, target: pa.DataType) -> list[Any]:
    path.write_text(text)
    rows = SourceRows(Source(str(path), kind, str(path), pyarrow.fs.LocalFileSystem(), {}), pa.schema({"a": target}))
    found: list[Any] = rows.to_reader().read_all()["a"].to_pylist()
    return found


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize(
    ("text", "target", "stored"),
    [
        ("2026-05-01T12:00:00", SECOND, NOON),
        ("2026-05-01T17:00:00+05:00", UTC, AWARE),
        ("2026-05-01T12:00:00+05:00", SECOND, None),
        ("2026-05-01T12:00:00Z", SECOND, None),
        ("2026-05-01T12:00:00", UTC, None),
        ("12:30:00.25", pa.time64("us"), datetime.time(12, 30, 0, 250_000)),
        ("12:30:00.25", pa.time32("s"), None),
        ("12:30:00.000000001", pa.time64("us"), None),
    ],
)
def test_times_have_a_zone_where_the_column_has_one_and_are_not_cut_off(
    tmp_path: Path, kind: str, text: str, target: pa.DataType, stored: object
) -> None:
    form = "a\n{}\n" if kind == "csv" else '{{"a": null}}\n{{"a": "{}"}}\n'
    if stored is None:
        with pytest.raises(SourceError, match=r"(Row #|line )2"):
            read(tmp_path / "file", kind, form.format(text), target)
    else:
        assert read(tmp_path / "file", kind, form.format(text), target)[-1] == stored


@pytest.mark.parametrize("text", ["1e400", "-1e400", '"1e400"', "  1e400"])
def test_a_number_out_of_range_is_not_infinity(tmp_path: Path, text: str) -> None:
    assert read(tmp_path / "file", "csv", "a\ninf\n-inf\n\n2\n", pa.float64()) == [float("inf"), -float("inf"), 2]
    with pytest.raises(SourceError, match=r"column 'a': -?1e400 is out of range"):
        read(tmp_path / "file", "csv", f"a\ninf\n1\n{text}\n", pa.float64())


@pytest.mark.parametrize(
    ("wrong", "target"),
    [("1.5", pa.int8()), ("1.555", pa.decimal128(5, 2)), ('"2026-05-01T12:00:00"', pa.date32()), ("1 } ,", pa.int8())],
)
def test_an_error_in_json_lines_names_the_line(tmp_path: Path, wrong: str, target: pa.DataType) -> None:
    for before in (0, 1, 6):
        lines = '{"a": null}\n\n' * before + f'{{"a": {wrong}}}\n' + '{"a": null}\n' * 3
        with pytest.raises(SourceError, match=f"line {2 * before + 1}: "):
            read(tmp_path / "file", "json", lines, target)


@pytest.mark.parametrize("bad", ['{"b": ' + "[" * 30_000, '{"b": ' + "[\n" * 30_000, "null", '{"a": 1}null'])
def test_a_line_that_pyarrow_does_not_survive_is_an_error(tmp_path: Path, bad: str) -> None:
    for before, behind in (("", ""), ('{"a": 1}\r\n\r\n', '\n{"a": 3}\n')):
        with pytest.raises(SourceError, match=rf"line {before.count(chr(10)) + 1}: .*(nested too deep|null)"):
            read(tmp_path / "file", "json", before + bad + behind, pa.int64())


def test_brackets_in_texts_and_beside_each_other_are_no_levels(tmp_path: Path) -> None:
    values = ["[" * 300, '"]' * 300, "\\" * 3 + "[" * 300]
    lines = [json.dumps({"a": value}) for value in values]
    assert read(tmp_path / "file", "json", "\n".join(lines), pa.string()) == values
    many = [[number] for number in range(1000)]
    assert read(tmp_path / "file", "json", json.dumps({"a": many}), pa.list_(pa.list_(pa.int64()))) == [many]
