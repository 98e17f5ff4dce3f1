"""`committerd append` puts files of each format into the table, and shows its progress."""

from __future__ import annotations

import gzip
import json
import os
import pty
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

from committerd_client import SyncCommitClient
from harness.scene import Scene
from tests.commands.running import Ran, run

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def files_of_each_format(folder: Path) -> list[str]:
    """One file of each format, with two rows each."""

    def rows(first: int) -> pa.Table:
        return pa.table({"id": pa.array([first, first + 1]), "name": [f"row {first}", None]})

    pyarrow.parquet.write_table(rows(0), folder / "a.parquet")
    pyarrow.feather.write_feather(
        rows(2).cast(pa.schema([("id", pa.int32()), ("name", pa.string())])), folder / "b.arrow"
    )
    with pa.ipc.new_stream(folder / "c.ipc", rows(4).schema) as stream:
        stream.write_table(rows(4))
    pyarrow.csv.write_csv(rows(6), folder / "d.csv")
    lance.write_dataset(rows(8), folder / "e.lance")
    with gzip.open(folder / "f.jsonl.gz", "wt") as file:
        file.write('{"id": 10, "name": "row 10"}\n\n{"id": 11}\n')
    return [str(folder / name) for name in ("a.parquet", "b.arrow", "c.ipc", "d.csv", "e.lance", "f.jsonl.gz")]


def _append(scene: Scene, *words: object) -> Ran:
    return run(scene, "append", scene.table.uri, "--name", scene.name, *map(str, words))


def _appended(scene: Scene, *words: object) -> list[dict[str, Any]]:
    ran = _append(scene, *words, "--json")
    assert ran.code == 0, ran.err
    found: list[dict[str, Any]] = ran.json()["files"]
    return found


def test_files_of_each_format_are_appended(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    files = files_of_each_format(tmp_path / "in")
    scene.daemon().wait_ready(text="waits for the table")
    ran = _append(scene, "--create", *files[:2])
    assert ran.out.splitlines() == [f"{files[0]}: 2 rows in version 1", f"{files[1]}: 2 rows in version 2"]
    assert [one["rows"] for one in _appended(scene, *files[2:])] == [2] * 4
    assert sorted(scene.table.ids()) == list(range(12))
    assert _names(scene) == {number: f"row {number}" if number % 2 == 0 else None for number in range(12)}

    (tmp_path / "in" / "_SUCCESS").touch()
    (tmp_path / "in" / ".a.parquet.crc").touch()
    found = _appended(scene, tmp_path / "in")
    assert sorted(one["file"] for one in found) == sorted(files)
    assert len(scene.table.ids()) == 24


def _names(scene: Scene) -> dict[int, str | None]:
    table = scene.table.open().to_table().to_pydict()
    return dict(zip(table["id"], table["name"], strict=True))


def test_a_problem_of_a_file_names_the_file_and_comes_before_the_first_commit(scene: Scene, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"id": [1]}), tmp_path / "good.parquet")
    pyarrow.parquet.write_table(pa.table({"id": [["x"]]}), tmp_path / "odd.parquet")
    (tmp_path / "wrong.csv").write_text("id,nam\n1,x\n")
    (tmp_path / "wrong.jsonl").write_text('{"id": 1}\n{"id": 2, "nam": "x"}\n')
    (tmp_path / "array.json").write_text('[{"id": 1}]\n')
    (tmp_path / "rows.txt").write_text("id\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": 1}\n{"name": "\xe9"}\n')
    (tmp_path / "latin.csv").write_bytes(b"id,name\n1,x\n2,\xe9\n")
    (tmp_path / "twice.csv").write_text("id,id\n1,2\n")
    (tmp_path / "nothing.csv").touch()
    scene.started()
    with _client(scene) as client:
        client.create(pa.schema([("id", pa.int64()), ("name", pa.string())]))
    for name, code, sentence in (
        ("odd.parquet", 1, "column 'id' is int64 in the table"),
        ("wrong.csv", 1, "schema_differs: column 'nam' is not in the table (did you mean 'name'?)"),
        ("wrong.jsonl", 1, "schema_differs: column 'nam' is not in the table"),
        ("array.json", 1, "array.json can't be read as json: line 1"),
        ("latin.jsonl", 1, "latin.jsonl can't be read as json: line 2: it is not UTF-8"),
        ("twice.csv", 1, "column 'id' is there twice"),
        ("nothing.csv", 1, "nothing.csv can't be read as csv: Empty CSV file"),
        ("no.parquet", 1, "no.parquet can't be read as parquet"),
        ("rows.txt", 1, "rows.txt: the name does not say the format: give --format"),
        ("empty", 1, "there is no file in this folder"),
    ):
        ran = _append(scene, tmp_path / "good.parquet", tmp_path / name)
        assert (ran.code, sentence in ran.err, name in ran.err) == (code, True, True), ran.err
        assert "settings" not in ran.err
        assert scene.table.version == 1, name
    # A value is seen when it is read.
    assert "latin.csv can't be read as csv: In CSV column #1: Row #3" in _append(scene, tmp_path / "latin.csv").err


def _client(scene: Scene) -> SyncCommitClient:
    return SyncCommitClient(scene.topics.servers, dataset=scene.name, dataset_uri=scene.table.uri)


TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("small", pa.int16()),
        ("price", pa.decimal128(10, 2)),
        ("ratio", pa.float32()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("sure", pa.bool_()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("where", pa.struct([("x", pa.float32()), ("label", pa.string())])),
        ("vector", pa.list_(pa.float32(), 2)),
    ]
)
TEXTS = ["007", "+49", "TRUE", "NA", "12345678901234567890123", "2026-01-01", "1e5", " x ", "null"]
OF_CSV = [
    ("small", "1.5", "invalid value '1.5'"),
    ("small", "70000", "invalid value '70000'"),
    ("small", "NA", "invalid value 'NA'"),
    ("price", "1.555", "data loss"),
    ("ratio", "1e300", "ratio"),
    ("day", "2026-01-01T23:30:00", "invalid value"),
    ("at", "2026-01-01T00:00:00.1234567", "invalid value"),
    ("sure", "5", "invalid value '5'"),
]
"""Column, text, and what the error says."""
OF_JSON = [
    ("text", "7", "from string to number"),
    ("text", "true", "from string to boolean"),
    ("small", "1.5", "parse:1.5"),
    ("small", "70000", "parse:70000"),
    ("small", '"7"', "from number to string"),
    ("id", "12345678901234567890123", "parse:12345678901234567890123"),
    ("price", "1.555", "scale 3"),
    ("ratio", "1e300", "ratio"),
    ("day", '"2026-01-01T23:30:00"', "2026-01-01T23:30:00"),
    ("sure", "5", "from boolean to number"),
    ("where", '{"x": 1, "extra": 99}', "field 'where.extra' is not in the table"),
    ("where", '{"x": 1, "x": 2}', "twice"),
    ("vector", "[1, 2, 3]", "vector"),
]


def test_the_types_of_the_table_are_those_of_text_files(scene: Scene, tmp_path: Path) -> None:
    """What stands there is what is stored, or the error names the file, the line and the value."""
    scene.started()
    with _client(scene) as client:
        client.create(TYPES)
    csv, lines = tmp_path / "rows.csv", tmp_path / "rows.jsonl"
    csv.write_text(
        "text,id,small,price,ratio,day,at,sure,kind\n"
        + "".join(
            f"{text},{number},-3,1.50,0.5,2026-11-01,2026-11-01T23:30:00.123456,true,k\n"
            for number, text in enumerate(TEXTS)
        )
        + '"",100,,,,,,,\n,101,,,,,,,\n"two\nlines",102,,,,,,,\n'
    )
    value = (
        '"small": -3, "price": 1.50, "ratio": 0.5, "day": "2026-11-01", "at": "2026-11-01T23:30:00.123456", '
        '"sure": true, "kind": "k", "where": {"x": 0.25, "label": "007"}, "vector": [1, 0.5]'
    )
    lines.write_text(
        "".join(f'{{"text": {json.dumps(text)}, "id": {200 + number}, {value}}}\n' for number, text in enumerate(TEXTS))
        + '{"id": 300}\n{"id": 301, "text": "", "where": {"label": "NA"}}\n'
    )
    assert [one["rows"] for one in _appended(scene, csv, lines)] == [len(TEXTS) + 3, len(TEXTS) + 2]
    rows = {row["id"]: row for row in scene.table.open().to_table().to_pylist()}
    for first in (0, 200):
        assert [rows[first + number]["text"] for number in range(len(TEXTS))] == TEXTS
        row = rows[first]
        assert (row["small"], row["price"], row["ratio"]) == (-3, Decimal("1.50"), 0.5)
        assert (str(row["day"]), str(row["at"]), row["sure"]) == ("2026-11-01", "2026-11-01 23:30:00.123456", True)
        assert row["kind"] == "k"
    assert rows[200]["where"] == {"x": 0.25, "label": "007"}
    assert rows[200]["vector"] == [1.0, 0.5]
    assert [rows[number]["text"] for number in (100, 101, 102, 300, 301)] == ["", None, "two\nlines", None, ""]

    version = scene.table.version
    for column, text, sentence in OF_CSV:
        csv.write_text(f"id,{column}\n1,\n2,{text}\n")
        ran = _append(scene, csv)
        assert (ran.code, sentence in ran.err, str(csv) in ran.err) == (1, True, True), (column, text, ran.err)
    for column, text, sentence in OF_JSON:
        before = "" if column == "id" else '"id": 1, '
        lines.write_text(f'{{"id": 0}}\n{{{before}"{column}": {text}}}\n')
        ran = _append(scene, lines)
        assert (ran.code, sentence in ran.err, str(lines) in ran.err) == (1, True, True), (column, text, ran.err)
    assert scene.table.version == version

    csv.write_text('id,text,small\n400,NA,NA\n401,"NA",7\n')
    _appended(scene, csv, "--null", "NA")
    rows = {row["id"]: row for row in scene.table.open().to_table().to_pylist()}
    assert [(rows[one]["text"], rows[one]["small"]) for one in (400, 401)] == [(None, None), ("NA", 7)]


@pytest.mark.parametrize("name", ["big.csv", "big.jsonl"])
def test_a_surprise_after_many_megabytes_is_an_error_and_not_a_traceback(
    scene: Scene, tmp_path: Path, name: str
) -> None:
    """A column that looks whole at first holds text far behind; a row is longer than a block of pyarrow's."""
    scene.started()
    with _client(scene) as client:
        client.create(pa.schema([("id", pa.int64()), ("text", pa.string())]))
    file, long = tmp_path / name, "x" * 3_000_000
    form = "{0},{1}\n" if name == "big.csv" else '{{"id": {0}, "text": "{1}"}}\n'
    with file.open("w") as out:
        out.write("id,text\n" if name == "big.csv" else "")
        out.writelines(form.format(number, number) for number in range(400_000))
        out.write(form.format(400_000, "007"))
        out.write(form.format(400_001, long))
    assert [one["rows"] for one in _appended(scene, file)] == [400_002]
    found = scene.table.open().to_table(filter="id >= 399999").to_pydict()
    assert found == {"id": [399_999, 400_000, 400_001], "text": ["399999", "007", long]}
    with file.open("a") as out:
        out.write(form.format('"seven"' if name == "big.jsonl" else "seven", "x"))
    ran = _append(scene, file)
    assert (ran.code, str(file) in ran.err, "Traceback" in ran.err) == (1, True, False)
    line = "line 400003" if name == "big.jsonl" else "Row #400004"
    assert line in ran.err
    assert scene.table.version == 2


def test_a_new_table_gets_types_that_lose_nothing_of_a_text_file(scene: Scene, tmp_path: Path) -> None:
    columns = {
        "whole": ["7", "-8"], "zeros": ["007", "8"], "plus": ["+49", "1"], "digits": ["1" * 23, "1"],
        "ratio": ["1.50", "2"],
        "long": ["0.12345678901234567", "1"], "sure": ["true", "false"], "caps": ["TRUE", "false"], "na": ["1", "NA"],
        "day": ["2026-02-28", ""], "no_day": ["2026-02-30", ""], "at": ["2026-01-01 10:00:00.5", ""], "none": ["", ""],
    }  # fmt: skip
    (tmp_path / "rows.csv").write_text("\n".join(map(",".join, [list(columns), *zip(*columns.values(), strict=True)])))
    (tmp_path / "rows.jsonl").write_text('{"day": "2026-02-28", "whole": 7, "ratio": 1.5}\n')
    scene.daemon()
    _appended(scene, tmp_path / "rows.csv", "--create")
    text, number = pa.string(), pa.int64()
    kinds = {
        "whole": number, "zeros": text, "plus": text, "digits": text, "ratio": pa.float64(), "long": text,
        "sure": pa.bool_(), "caps": text, "na": text, "day": pa.date32(), "no_day": text, "at": pa.timestamp("us"),
        "none": text,
    }  # fmt: skip
    assert {field.name: field.type for field in scene.table.open().schema} == kinds
    row = scene.table.open().to_table().to_pylist()[0]
    assert [row[name] for name in ("zeros", "plus", "digits", "caps")] == ["007", "+49", "1" * 23, "TRUE"]


def test_a_terminal_gets_a_progress_bar(scene: Scene, tmp_path: Path) -> None:
    files = files_of_each_format(tmp_path)[:2]
    scene.daemon()
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "committerd", "append", scene.table.uri, "--name", scene.name, "--create", *files],
        env={**os.environ, "COMMITTERD_KAFKA__BOOTSTRAP_SERVERS": scene.topics.servers},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # Linux's way to say that the other end is closed
        pass
    assert running.wait(60) == 0, said
    assert b"appending" in said
    assert b"100%" in said
    assert f"{files[1]}: 2 rows in version 2".encode() in said
