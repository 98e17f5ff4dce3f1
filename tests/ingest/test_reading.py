"""The contract of readers: ours keep it, and the tests find a reader that breaks it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from committerd.commands.append.sources import Folder, ReadableFiles
from committerd.commands.ingest.files import FolderReader
from committerd.commands.ingest.parts import line_check
from committerd.errors import SourceError
from committerd.settings.load import load_settings
from committerd_batch.target import Mode
from committerd_ingest.reading import Part, Reader
from committerd_ingest.testing import SCHEMA, ReaderTests, Supply
from tests.ingest import lists
from tests.ingest.lists import ListReader, Lists

SETTINGS = load_settings(dataset={"name": "d", "uri": "/tmp/d.lance"}, kafka={"bootstrap_servers": "localhost:1"})
PAGE = Path(__file__).resolve().parents[2] / "docs" / "readers.md"


class TestListReader(ReaderTests):
    @pytest.fixture
    def source(self) -> Supply:
        return Lists(ListReader)


class Files:
    """A folder of JSON lines."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def add(self, first: int, count: int) -> None:
        lines = [json.dumps({"id": number, "text": str(number)}) for number in range(first, first + count)]
        hidden = self.folder / "_new"
        hidden.write_text("\n".join(lines))
        self.count += 1
        os.utime(hidden, ns=(self.count * 10**9, self.count * 10**9))
        hidden.rename(self.folder / f"{first}.jsonl")

    def open(self) -> Reader:
        return FolderReader(Folder(str(self.folder), SETTINGS, {}), list_seconds=0.05)


class TestFolderReader(ReaderTests):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Supply:
        return Files(tmp_path)


TESTS = ReaderTests()


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (lists.BeginsBeforeTheToken, TESTS.test_behind_each_token_come_the_rows_that_follow_it),
        (lists.BeginsBehindTheNextPart, TESTS.test_behind_each_token_come_the_rows_that_follow_it),
        (lists.KnowsItsTokensInTheProcess, TESTS.test_behind_each_token_come_the_rows_that_follow_it),
        (lists.HasNoToken, TESTS.test_a_token_follows_all_rows),
        (lists.TurnsRowsAround, TESTS.test_rows_come_once_and_in_their_order),
        (lists.DropsARow, TESTS.test_rows_come_once_and_in_their_order),
        (lists.Ends, TESTS.test_where_nothing_comes_the_iterator_goes_on),
        (lists.HasANameOfItsOwn, TESTS.test_name_and_splits_are_the_same_for_each_process),
        (lists.ChangesColumnsBeforeAToken, TESTS.test_parts_up_to_a_token_have_the_same_columns),
        (lists.SharesItsPlace, TESTS.test_a_token_may_be_used_twice_at_once),
    ],
)
def test_a_reader_that_breaks_a_promise_fails(
    broken: type[ListReader], test: Callable[[Supply, Reader], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("committerd_ingest.testing.readers._SECONDS_MAX", 0.5)
    source = Lists(broken)
    with pytest.raises((AssertionError, StopIteration, IndexError)):
        test(source, source.open())


def test_a_part_that_makes_no_sense_is_refused() -> None:
    for wrong in (
        {"bad": "x"},
        {"bad": "x", "token": "1", "rows": SCHEMA.empty_table()},
        {"token": "x" * 300_001},
    ):
        with pytest.raises(ValueError):
            Part(**wrong)


def test_the_reader_of_the_page_passes_all_tests(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_log_reader.py").write_text(program, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "files")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = set(re.findall(r"^PASSED test_log_reader\.py::TestLogReader::(\w+)", done.stdout, re.MULTILINE))
    assert passed == {name for name in dir(ReaderTests) if name.startswith("test_")}


class Failing:
    """Files whose store fails at the next `fail` requests."""

    def __init__(self, files: ReadableFiles) -> None:
        self._files, self.fail = files, 0

    def get_file_info(self, what: Any, /) -> Any:
        return self._files.get_file_info(what)

    def open_input_file(self, path: str, /) -> pa.NativeFile:
        self._request()
        return self._files.open_input_file(path)

    def open_input_stream(self, path: str, /, compression: None) -> pa.NativeFile:
        self._request()
        return self._files.open_input_stream(path, compression=compression)

    def _request(self) -> None:
        self.fail -= 1
        if self.fail >= 0:
            raise OSError("503 Slow Down")


@pytest.mark.parametrize("lines", [True, False])
def test_a_file_is_bad_for_what_it_holds_and_never_because_its_store_fails(tmp_path: Path, lines: bool) -> None:
    for number, (name, text) in enumerate([("a.jsonl", b'{"id": 1}'), ("b.jsonl.gz", b"none"), ("c.parquet", b"none")]):
        (tmp_path / name).write_bytes(text)
        os.utime(tmp_path / name, ns=(number, number))
    folder = Folder(str(tmp_path), SETTINGS, {})
    files = Failing(folder._files)
    folder._files = files
    check = line_check(Mode.APPEND, keys=[], bytes_max=10**9) if lines else None
    reader = FolderReader(folder, list_seconds=0.05, check_line=check)
    for fail in (1, 2):
        files.fail = fail
        with pytest.raises(SourceError, match="503"):
            next(reader.read("files", None, SCHEMA))
    files.fail = 0
    parts = [part for part, _ in zip(reader.read("files", None, SCHEMA), range(4), strict=False) if part is not None]
    found = [(Path(part.origin).name, part.rows.num_rows if part.rows else 0, part.bad != "") for part in parts]
    assert found == [("a.jsonl", 1, False), ("a.jsonl", 0, False), ("b.jsonl.gz", 0, True), ("c.parquet", 0, True)]
