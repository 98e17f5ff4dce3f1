"""Files of JSON lines: bad lines are told from good ones."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pytest

from committerd.commands.append.sources import Source
from committerd.commands.ingest.json_lines import good_lines
from committerd.commands.ingest.parts import line_check
from committerd.errors import SourceError
from committerd_batch.target import Mode
from committerd_client.errors import StagingError
from committerd_ingest.row_changes import columns_of

TABLE = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string()), ("day", pa.date32())])


def found_in(file: Path, text: bytes, mode: str = "append") -> tuple[list[object], dict[int, str]]:
    """The rows, and why each bad line is bad."""
    file.write_bytes(text)
    source = Source(str(file), "json", str(file), pyarrow.fs.LocalFileSystem(), {})
    check = line_check(Mode(mode), keys=["id"], bytes_max=10_000_000)
    parts = list(good_lines(source, columns_of(Mode(mode), TABLE), check))
    assert len({rows.schema for rows, _ in parts}) <= 1
    lines = text.split(b"\n")
    assert all(one.value == lines[one.number - 1] for _, bad in parts for one in bad)
    return [row for rows, _ in parts for row in rows.to_pylist()], {one.number: one.why for _, b in parts for one in b}


def test_the_good_lines_of_a_file_are_used_whatever_the_others_hold(tmp_path: Path) -> None:
    lines = [
        b'{"id": 1, "text": "a"}',
        b'{"id": "x"}',
        b"",
        b"{",
        b"null",
        b'{"id": 2} {"id": 3}',
        b'{"id": 4, "other": {"deep": [1]}}',
        b'{"text": "no id"}',
        b'{"id": 5, "day": "2024-02-30"}',
        b'{"id": 6, "text": "\xff"}',
        b' {"id": 7, "day": "2024-02-29"}',
        b'{"id": 8.5}',
        b'{"id": 9}',
    ]
    rows, bad = found_in(tmp_path / "a.jsonl", b"\n".join(lines))
    assert [row["id"] for row in rows] == [1, 7, 9]  # type: ignore[index]
    assert sorted(bad) == [2, 4, 5, 6, 7, 8, 9, 10, 12]
    for number, text in {4: "not JSON", 5: "null", 7: "other", 8: "id", 10: "UTF-8"}.items():
        assert text in bad[number]


def test_envelopes_are_judged_line_by_line_too(tmp_path: Path) -> None:
    lines = [
        b'{"op": "c", "after": {"id": 1, "text": "a"}, "source": {"lsn": 1}}',
        b'{"op": "c", "after": {"id": null}, "source": {"other": "x"}}',
        b'{"op": "d", "before": {"id": 1}, "after": null, "source": 7}',
        b'{"op": "d", "before": null}',
        b'{"op": "t"}',
        b'{"id": 1}',
    ]
    rows, bad = found_in(tmp_path / "a.jsonl", b"\n".join(lines), "cdc")
    assert [row["op"] for row in rows] == ["c", "d"]  # type: ignore[index]
    assert sorted(bad) == [2, 4, 5, 6]


def test_a_file_with_too_many_bad_lines_is_bad_itself(tmp_path: Path) -> None:
    good, bad = found_in(tmp_path / "a.jsonl", b'{"id": "x"}\n' * 1000 + b'{"id": 1}\n')
    assert (len(good), len(bad)) == (1, 1000)
    with pytest.raises(SourceError, match="more than 1,000 lines are bad, such as line 1: "):
        found_in(tmp_path / "a.jsonl", b'{"id": "x"}\n' * 1001 + b'{"id": 1}\n')


def test_a_file_that_can_not_be_read_is_no_bad_line(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="can't be read as json") as raised:
        found_in(tmp_path / "a.jsonl.gz", b"no gzip")
    assert isinstance(raised.value.__cause__, OSError | ValueError)


def test_a_line_that_is_nested_too_deep_is_bad_alone(tmp_path: Path) -> None:
    def nested(levels: int) -> bytes:
        return b'{"id": 2, "other": ' + b"[" * levels + b"]" * levels + b"}"

    for levels in (1_100, 30_000):
        rows, bad = found_in(tmp_path / "a.jsonl", b'{"id": 1}\n' + nested(levels) + b'\n{"id": 3, "text": "[[{{"}\n')
        assert [row["id"] for row in rows] == [1, 3]  # type: ignore[index]
        assert [*bad] == [2]
        assert "nested too deep" in bad[2]


def test_bad_lines_are_told_from_good_ones_only_until_there_are_too_many(tmp_path: Path) -> None:
    file, checked = tmp_path / "a.jsonl", list[int]()
    file.write_bytes(b'{"id": 1}\n' * 20_000)

    def check(rows: pa.Table, columns: pa.Schema) -> None:
        checked.append(rows.num_rows)
        raise StagingError("it does not fit")

    source = Source(str(file), "json", str(file), pyarrow.fs.LocalFileSystem(), {})
    with pytest.raises(SourceError, match="more than 1,000 lines are bad, such as line 1: it does not fit"):
        list(good_lines(source, TABLE, check))
    assert checked.count(1) == 1001
    assert len(checked) < 2 * 1001 + 20
