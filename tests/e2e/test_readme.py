"""Everything that README.md and the pages of docs/ tell a user to run works as printed, against a real Kafka."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import pytest

from committerd.settings.load import load_settings
from harness import PartMissingError
from harness.daemon import Daemon
from harness.java import BRIEFLY, INSTALL_JDK, jdk
from harness.kafka import KafkaBroker, RunningKafka
from tests.ingest.running import wait

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(
        ROOT / name
        for name in ("deploy/README.md", "helm/committerd/README.md", "producers/README.md", "examples/java/README.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CLIENT = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
SMALL_SPARK = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_SUBMIT_ARGS": f"--driver-java-options '{' '.join(BRIEFLY)}' --conf spark.ui.enabled=false pyspark-shell",
}
"""Starts sooner; what it writes is the same."""


def _section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _blocks(text: str, language: str = "") -> list[str]:
    """The fenced blocks of that language; those without a language if it is empty."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for named, block in found if named == language]


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _run(program: str, *, interactive: bool = False) -> list[str]:
    """Run the lines; the Python of this environment is first on the PATH, as after `activate`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-i" if interactive else "-"],
        input=program,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "PATH": path, **SMALL_SPARK},
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def here(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path) -> Callable[[str], str]:
    """The pages' values replaced by the Kafka, dataset and folder of this test."""

    def meant(text: str) -> str:
        for printed, real in (
            ("localhost:9092", kafka.bootstrap_servers),
            ("/tmp/events.lance", str(tmp_path / f"{dataset}.lance")),  # the queue's name follows from it
            ("/tmp/numbers", str(tmp_path / "numbers")),
            ("__NAME=events", f"__NAME={dataset}"),
            ("new-people", f"{dataset}-people"),
            ("__PORT=9465", "__PORT=0"),
        ):
            text = text.replace(printed, real)
        return text

    return meant


@pytest.fixture
def committer(here: Callable[[str], str], tmp_path: Path) -> Iterator[Daemon]:
    """Started with what the README exports, and a port of its own."""
    (block,) = _blocks(_section("First commit"))
    assert block.splitlines()[-1] == "committerd run"
    exported = dict(re.findall(r"^export COMMITTERD_(\w+)=(.*)$", here(block), re.MULTILINE))
    assert exported.keys() == {"DATASET__NAME", "DATASET__URI", "KAFKA__BOOTSTRAP_SERVERS"}
    with Daemon(
        name=exported["DATASET__NAME"],
        uri=exported["DATASET__URI"],
        kafka=exported["KAFKA__BOOTSTRAP_SERVERS"],
        log=tmp_path / "daemon.log",
    ) as daemon:
        yield daemon


@pytest.mark.parametrize(("title", "needed"), [("First commit", "pylance"), ("First stream", "pyspark")])
def test_what_is_installed_has_all_that_the_programs_import(title: str, needed: str) -> None:
    line = r"^pip install .*'\./producers\[(\w+)\]'(?: \.)?$"
    (installed,) = re.findall(line, _blocks(_section(title))[0], re.MULTILINE)
    client = tomllib.loads((ROOT / "producers" / "pyproject.toml").read_text(encoding="utf-8"))
    extras = client["project"]["optional-dependencies"]
    assert any(one.startswith(needed) for one in extras[installed])


@pytest.mark.kafka
@pytest.mark.pylance
def test_the_first_commit_works_as_it_is_printed(committer: Daemon, here: Callable[[str], str]) -> None:
    """Pasted into the interactive interpreter before the committer has made its topics; then the programs of docs/."""
    (first,) = _blocks(_section("First commit"), "python")
    added, merged, state = _run(here(first), interactive=True)
    rest = "num_deleted_rows=0, attempts=1, duplicate=False)"
    assert added == f"WriteResult(version=1, num_inserted_rows=2, num_updated_rows=0, {rest}"
    assert merged == f"WriteResult(version=2, num_inserted_rows=1, num_updated_rows=1, {rest}"
    assert re.search(r"1 committer runs .* the table is at version 2\.", state)
    assert _names(here) == {1: "Ann", 2: "Rob", 3: "Cid"}
    for program in _blocks(CLIENT, "python"):
        *_, last = _run(here(program))
        assert re.search(r"version[ =]\d+", last), last


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.slow
def test_the_first_topic_works_as_it_is_printed(committer: Daemon, here: Callable[[str], str]) -> None:
    """The last line runs twice: rows that were added before are not added again."""
    (commit,) = _blocks(_section("First commit"), "python")
    (records,) = _blocks(_section("First topic"), "python")
    lines = here(_blocks(_section("First topic"))[0]).splitlines()
    assert len(lines) == 6
    activate, install, *settings, dry_run, ingest = lines
    assert (activate, install) == (". /tmp/committerd/bin/activate", "pip install './producers' '.[ingest]'")
    _run(here(commit), interactive=True)
    _run(here(records))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for one in settings:
        environment |= dict(re.findall(r"(COMMITTERD_\w+)=(\S+)", one))
    done = subprocess.run(dry_run.split(), env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert "3 records make 3 rows; 0 are bad. Nothing was written." in done.stdout, done.stderr

    def runs_until(expected: dict[int, str]) -> None:
        with subprocess.Popen(ingest.split(), env=environment, stdout=subprocess.DEVNULL) as process:
            try:
                wait(lambda: len(_names(here)) == len(expected), seconds=240)
                process.send_signal(signal.SIGINT)
                assert process.wait(120) == 0
            finally:
                process.kill()
        assert _names(here) == expected

    before = {1: "Ann", 2: "Rob", 3: "Cid", 20: "Gil", 21: "Gil", 22: "Gil"}
    runs_until(before)
    more = [one for one in here(records).replace("(20, 21, 22)", "(23,)").splitlines() if "create_topics" not in one]
    _run("\n".join(more))
    runs_until(before | {23: "Gil"})


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.spark
@pytest.mark.slow
def test_the_first_stream_works_as_it_is_printed(committer: Daemon, here: Callable[[str], str]) -> None:
    """Pasted twice: a row that was written before is not written again."""
    try:
        jdk("Spark", install=INSTALL_JDK)
    except PartMissingError as error:
        pytest.skip(str(error))
    (commit,) = _blocks(_section("First commit"), "python")
    (stream,) = _blocks(_section("First stream"), "python")
    _run(here(commit), interactive=True)
    assert "5 rows" in _run(here(stream), interactive=True)
    Path(here("/tmp/numbers"), "2.json").write_text('{"id": 12, "name": "Fay"}\n')
    assert "6 rows" in _run(here(stream), interactive=True)
    assert _names(here) == {1: "Ann", 2: "Rob", 3: "Cid", 10: "Dot", 11: "Eve", 12: "Fay"}


def _names(here: Callable[[str], str]) -> dict[int, str]:
    rows = lance.dataset(here("/tmp/events.lance")).to_table().to_pylist()
    assert len(rows) == len({row["id"] for row in rows})
    return {row["id"]: row["name"] for row in rows}


def test_every_program_on_a_page_is_run() -> None:
    """Here, in `test_connecting.py`, `test_change_events.py`, `test_traces.py`, `tests/dev/test_pages.py`,
    `tests/contracts`, `tests/ingest`, `tests/spark`, `tests/distributed`, `tests/packaging`, with the runbooks, or in
    `tests/kafka/test_upstream.py`.
    """
    pages = {_named(path) for path in PAGES if _blocks(path.read_text(encoding="utf-8"), "python")}
    assert {page for page in pages if not page.startswith(("docs/runbooks/", "docs/upstream/"))} == {
        "README.md",
        "docs/change-events.md",
        "docs/client.md",
        "docs/coming-from-lancedb.md",
        "docs/connecting.md",
        "docs/how-to/debezium.md",
        "docs/how-to/test-your-application.md",
        "docs/how-to/traces.md",
        "docs/ray-daft.md",
        "docs/readers.md",
        "docs/reading.md",
        "docs/spark.md",
        "docs/testing.md",
        "docs/tutorial.md",
    }
    assert len(_blocks(README, "python")) == 3


@pytest.mark.parametrize("line", range(len(_blocks((ROOT / "docs" / "stores.md").read_text(encoding="utf-8"), "toml"))))
@pytest.mark.parametrize("all_of_it", [False, True], ids=["as printed", "with what is commented out"])
def test_the_settings_of_a_store_are_taken(
    line: int, all_of_it: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = _blocks((ROOT / "docs" / "stores.md").read_text(encoding="utf-8"), "toml")[line]
    if all_of_it:
        text = re.sub(r"^# ", "", text, flags=re.MULTILINE)
    (tmp_path / "committerd.toml").write_text(text)
    monkeypatch.setenv("COMMITTERD_CONFIG", str(tmp_path / "committerd.toml"))
    monkeypatch.setenv("COMMITTERD_KAFKA__BOOTSTRAP_SERVERS", "localhost:9092")
    assert load_settings().dataset.name == "events"


@pytest.mark.parametrize("path", PAGES, ids=_named)
def test_json_on_a_page_is_json(path: Path) -> None:
    for block in _blocks(path.read_text(encoding="utf-8"), "json"):
        json.loads(block)


def _links(path: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", text)


def _anchors(path: Path) -> set[str]:
    """Anchors as GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=_named)
def test_links_lead_somewhere(path: Path) -> None:
    for link in _links(path):
        if re.match(r"https?:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), link
        assert not anchor or anchor in _anchors(file), link


def test_every_page_is_found_from_the_readme() -> None:
    found, left = set[Path](), [ROOT / "README.md"]
    while left:
        path = left.pop()
        if path.is_dir():
            path /= "README.md"
        if path in found or path.suffix != ".md" or not path.is_file():
            continue
        found.add(path)
        left += [(path.parent / link.partition("#")[0]).resolve() for link in _links(path) if "://" not in link]
    assert {_named(path) for path in PAGES} <= {_named(path) for path in found}
