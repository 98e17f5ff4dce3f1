"""`committerd append` puts files of each format into the table, once for each job, and shows its progress."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

from harness.scene import Scene

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]


def _files(folder: Path) -> list[str]:
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
    return [str(folder / name) for name in ("a.parquet", "b.arrow", "c.ipc", "d.csv", "e.lance")]


def test_files_of_each_format_are_appended_once_for_each_job(scene: Scene, tmp_path: Path) -> None:
    files = _files(tmp_path)
    scene.daemon().wait_ready(text="waits for the table")
    words = ("append", scene.table.uri, "--name", scene.name, "--create", "--job", "load")
    said = scene.command(*words, *files[:2])
    assert said.splitlines() == [f"{files[0]}: 2 rows in version 1", f"{files[1]}: 2 rows in version 2"]
    found = json.loads(scene.command(*words, *files, "--json"))
    assert found["rows"] == 6
    assert [one["duplicate"] for one in found["files"]] == [True, True, False, False, False]
    assert sorted(scene.table.ids()) == list(range(10))
    (tmp_path / "wrong.csv").write_text("id,nam\n1,x\n")
    failed = scene.command("append", scene.table.uri, "--name", scene.name, str(tmp_path / "wrong.csv"), good=False)
    assert "schema_differs: column 'nam' is not in the table (did you mean 'name'?)" in failed
    assert "no.parquet can't be read as parquet" in scene.command(
        "append", "/t", str(tmp_path / "no.parquet"), good=False
    )
    assert "--format" in scene.command("append", "/t", "rows.txt", good=False)


def test_a_terminal_gets_a_progress_bar(scene: Scene, tmp_path: Path) -> None:
    files = _files(tmp_path)[:2]
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
