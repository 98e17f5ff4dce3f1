"""The programs of the tutorial and of the guides, as they are printed, with `committerd dev`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import lance
import pytest

from tests.dev.running import Dev, share_lock

pytestmark = [pytest.mark.kafka, pytest.mark.pylance, pytest.mark.slow, pytest.mark.timeout(1800)]
DOCS = Path(__file__).resolve().parents[2] / "docs"


def _blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _run(*words: str | Path, text: str, environment: dict[str, str]) -> str:
    """Run a program that reads `text`; what it prints."""
    done = subprocess.run(words, input=text, env=environment, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_the_tutorial_and_the_guides_work_as_they_are_printed(cache: Path, tmp_path: Path) -> None:
    events, people = tmp_path / "events.lance", tmp_path / "people.lance"
    with Dev(events, str(people), cache=cache) as dev:
        facts = dev.next("started")
        for _ in range(2):
            dev.next("ready")

        def meant(text: str) -> str:
            for printed, real in (
                ("localhost:9092", facts["bootstrap_servers"]),
                ("/tmp/events.lance", str(events)),
                ("/tmp/people.lance", str(people)),
                ("/tmp/committerd/bin/committerd", f"{sys.executable} -m committerd"),
            ):
                text = text.replace(printed, real)
            return text

        def said(program: str) -> list[str]:
            return _run(sys.executable, "-", text=meant(program), environment=dev.environment).splitlines()

        write, read, many, twice = _blocks("tutorial.md", "python")
        added, merged, deleted = said(write)
        assert "version=1, num_inserted_rows=2" in added
        assert "version=2, num_inserted_rows=1, num_updated_rows=1" in merged
        assert "num_deleted_rows=1" in deleted
        assert said(read) == ["3 [{'id': 2, 'name': 'Rob'}, {'id': 3, 'name': 'Cid'}]"]
        versions, attempts = said(many)
        assert re.fullmatch(r"\d+ versions for 20 calls", versions)
        assert re.fullmatch(r"\d+ attempts at most", attempts)
        first, again = said(twice)
        assert first.endswith("duplicate: False")
        assert again == first.replace("False", "True")
        ids = lance.dataset(str(events)).to_table()["id"].to_pylist()
        assert sorted(ids) == [2, 3, 50, *range(100, 118), 200]
        (shell,) = _blocks("tutorial.md", "sh")
        asked = _run("sh", "-e", text=meant(shell), environment=dev.environment)
        assert "a committer:   runs" in asked
        assert "Nothing was found" in asked, asked

        (lancedb,) = _blocks("coming-from-lancedb.md", "python")
        said(lancedb)
        names = {row["id"]: row["name"] for row in lance.dataset(str(people)).to_table().to_pylist()}
        assert names == {401: "Ann", 402: "Rob"}

        (debezium,) = _blocks("how-to/debezium.md", "python")
        for _ in range(2):  # the same events again
            said(debezium)
            rows = lance.dataset(str(events)).to_table(filter="id > 300").to_pylist()
            assert rows == [{"id": 301, "name": "Anna"}]
        assert dev.stop() == 0


@pytest.mark.long
def test_the_test_of_an_application_passes(cache: Path, tmp_path: Path) -> None:
    (program,) = _blocks("how-to/test-your-application.md", "python")
    (tmp_path / "test_orders.py").write_text(program, encoding="utf-8")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("KAFKA_BOOTSTRAP_SERVERS", "KAFKA_HOME") and not name.startswith(("COMMITTERD_", "PYTEST_"))
    }
    share_lock(cache)
    said = _run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path,
        tmp_path / "test_orders.py",
        text="", environment=environment | {"COMMITTERD_CACHE": str(cache)},
    )  # fmt: skip
    assert "1 passed" in said
