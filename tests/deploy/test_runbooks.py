"""The runbooks: a page for each alert, and every command on it does what the page says, against a real dataset.

Committer and commands have one login, as in a Pod, with exactly the ACLs that docs/operating.md gives it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

from committerd.__main__ import cli
from committerd.commands.options import settings_help
from committerd.reasons import INVALID_REASONS, REFUSAL_CAUSES, UNSUPPORTED_REASONS
from committerd.telemetry import CAUSES, RETRY_REASONS, STORE_FAULTS
from harness.daemon import Daemon
from harness.java import java
from harness.kafka import KafkaBroker, RunningKafka, kafka_jars
from harness.scene import STAYS, Scene, until
from tests.deploy import alerts, runbooks
from tests.deploy.promql import known_metrics
from tests.kafka.acls import allow, listed, login

PAGES = alerts.pages()
_DOTTED = r"`(kafka|commit|start|store|dataset|daemon|s3|http|log)\.([a-z_0-9]+)[`( ]"
"""A setting, or an event of the log."""
HEADINGS = ["What it means", "How to look", "What to do"]


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    assert set(PAGES) == {rule["alert"] for rule in alerts.alerts()}
    others = {path.name for path in alerts.RUNBOOKS.iterdir()} - {f"{name}.md" for name in PAGES}
    assert others == {"README.md"}


def test_the_list_of_pages_says_how_severe_each_is() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+) \|$", (alerts.RUNBOOKS / "README.md").read_text(), re.M)
    assert listed == [(rule["alert"], rule["alert"], rule["labels"]["severity"]) for rule in alerts.alerts()]


@pytest.mark.parametrize("name", PAGES)
def test_each_page_says_what_how_and_what_to_do(name: str) -> None:
    page = PAGES[name]
    assert page.startswith(f"# {name}\n")
    parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    assert parts[1::2] == HEADINGS
    assert all(len(text.split()) > 10 for text in parts[2::2]), "a heading without text"
    for target in re.findall(r"\]\(([^)]+)\)", page):
        file, _, heading = target.partition("#")
        assert (alerts.RUNBOOKS / file).is_file(), target
        anchors = re.findall(r"^## (.*)$", (alerts.RUNBOOKS / file).read_text("utf-8"), re.MULTILINE)
        assert not heading or heading in {one.lower().replace(" ", "-") for one in anchors}, target


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if "http://localhost:9464" in page])
def test_each_page_with_a_request_says_whom_to_ask(name: str) -> None:
    """A standby's lag of 0 means nothing."""
    whom = (
        "README.md#the-active-member",
        "each process",
        "maintenance process",
        "A standby that is",
        "that is cut off",
    )
    assert any(words in PAGES[name] for words in whom)


@pytest.mark.parametrize("name", PAGES)
def test_each_metric_and_setting_on_a_page_is_there(name: str) -> None:
    known = known_metrics()
    for found in re.findall(r"\b(?:committerd|process)_[a-z_]+", PAGES[name]):
        if found not in ("committerd_client", "committerd_spark"):
            # A pattern of grep may name the beginning of several.
            assert any(one.startswith(found) for one in known), found
    settings, events = settings_help(), _log_events()
    for group, word in re.findall(_DOTTED, PAGES[name]):
        setting = f"COMMITTERD_{group.upper()}__{word.upper()}"
        assert setting in settings or f"{group}.{word}" in events, f"{group}.{word}"


def _log_events() -> set[str]:
    """What lines of the log are called."""
    sources = [path.read_text(encoding="utf-8") for path in (alerts.ROOT / "committerd").rglob("*.py")]
    return {event for source in sources for event in re.findall(r'_log\.\w+\(\s*"([a-z_]+\.[a-z_]+)"', source)}


def test_reasons_and_causes_on_the_pages_are_those_of_the_code() -> None:
    def named(page: str, pattern: str) -> set[str]:
        return {
            word for line in re.findall(pattern, PAGES[page], re.MULTILINE) for word in re.findall(r"`([a-z_]+)`", line)
        }

    assert named("CommitterdRefusedToRun", r"^\| (`.*?) \|") == {*CAUSES} - {"refused"}
    assert set(REFUSAL_CAUSES) <= set(CAUSES)
    assert named("CommitterdCommitRetries", r"^\| (`.*?) \|") == set(RETRY_REASONS)
    letters = named("CommitterdDeadLetters", r"^\* (`.*?):")
    assert letters <= {*INVALID_REASONS, *UNSUPPORTED_REASONS}
    assert letters
    faults = named("CommitterdStoreFailing", r"^\* (`.*?):")
    assert faults | {"throttled"} == set(STORE_FAULTS)


def test_only_blocks_that_are_run_are_on_the_pages() -> None:
    assert runbooks.languages() == {"sh", "python"}
    for name, page in PAGES.items():
        for line in runbooks.shell_lines(page):
            assert line.startswith(("committerd ", "curl -s http://localhost:9464/", "kafka-configs.sh ")), (name, line)


@pytest.mark.parametrize(("page", "words"), list(runbooks.commands()), ids=lambda given: str(given)[:60])
def test_each_command_is_one_of_committerds(page: str, words: list[str]) -> None:
    """Parsed as the program does, without running it."""
    command: click.Command = cli
    context = click.Context(command, info_name="committerd")
    rest = list(words)
    while isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        assert found is not None, f"{page}: committerd {' '.join(words)}"
        command, rest = found, rest[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    if rest or "position rewind" not in " ".join(words):  # named in a text, without its required option
        command.make_context(command.name, rest, resilient_parsing=False)


# For real


@dataclass(frozen=True, slots=True)
class Trouble:
    """A dataset as an operator may find it: a member, dead letters, a conflict, versions by others."""

    scene: Scene
    daemon: Daemon
    maintainer: Daemon | None = None
    """`committerd maintain`, whose metrics the pages about maintenance ask for."""
    done: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)
    """By the line that was run: one that stands on several pages is run once."""

    def real(self, text: str) -> str:
        """What a page says of the dataset `events`, said of this one."""
        asked = self.maintainer if self.maintainer and "committerd_maintenance_" in text else self.daemon
        for named, meant in (
            ("/data/events.lance", self.scene.table.uri),
            ("http://localhost:9464", asked.url()),
            ("broker1:9092", self.scene.topics.servers),
            ("events.staged", self.scene.topics.staged),
            ("events.outcomes", self.scene.topics.outcomes),
            ('dataset="events"', f'dataset="{self.scene.name}"'),
        ):
            text = text.replace(named, meant)
        return text


def _as_in_a_pod(broker: KafkaBroker, dataset: str) -> dict[str, str]:
    """Give the login the rights of a committer, and those for commands in its Pod; returns its settings."""
    rows = ("`committerd run`", "`topics create`", "`heartbeat`", "`dead list`", "`topics transactions`", "`maintain`")
    allow(broker, [right for row in rows for right in listed(row, dataset)])
    return login(broker)


@pytest.fixture(scope="module")
def trouble(strict_kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trouble]:
    name = f"t-{uuid.uuid4().hex[:12]}"
    pod = _as_in_a_pod(strict_kafka, name)
    with Scene(kafka=strict_kafka.bootstrap_servers, name=name, folder=tmp_path_factory.mktemp("trouble")) as scene:
        scene.table.create()
        daemon = scene.started(**pod, **STAYS, COMMIT__VERIFY_FILES="always")
        _dead_letter_whose_cause_is_gone(scene)
        scene.committed(3)
        scene.ask(b"garbage")
        scene.table.write()
        until(lambda: scene.topics.group_offset() == 5, seconds=60)
        command = (sys.executable, "-m", "committerd", "maintain")
        servers = strict_kafka.login_servers
        with Daemon(name=name, uri=scene.table.uri, kafka=servers, command=command, settings=pod) as maintainer:
            yield Trouble(scene, daemon, maintainer)


def _dead_letter_whose_cause_is_gone(scene: Scene) -> None:
    """The first one: a data file was away for a while."""
    lacking = scene.table.append()
    file = scene.table.data_file(lacking)
    aside = file.rename(scene.folder / "aside")
    (refused,) = scene.ask(lacking)
    assert refused.reason == "missing_file"
    aside.rename(file)


def _python(trouble: Trouble, program: str) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, "-c", trouble.real(program)])


def _run(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=180, env=environment or dict(os.environ)
    )


def _kafka_configs(words: str) -> str:
    """Kafka's own tool, by the class that its script starts."""
    return f"{java('Apache Kafka', install='')} -cp '{kafka_jars()}/*' kafka.admin.ConfigCommand {words}"


def _shell(trouble: Trouble, line: str) -> subprocess.CompletedProcess[str]:
    line = trouble.real(line)
    if line.startswith("kafka-configs.sh "):
        line = _kafka_configs(line.removeprefix("kafka-configs.sh "))
    folder = Path(sys.executable).parent
    return _run(
        ["sh", "-c", line],
        {**trouble.daemon.environment, "PATH": f"{folder}:{os.environ['PATH']}"},
    )


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PAGES if name != "CommitterdRefusedToRun"])
def test_every_command_of_a_page_does_its_work(name: str, trouble: Trouble) -> None:
    for line in runbooks.shell_lines(PAGES[name]):
        done = trouble.done.get(line) or trouble.done.setdefault(line, _shell(trouble, line))
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), line
    for program in runbooks.programs(PAGES[name]):
        if name == "CommitterdWaitingForTable":  # this one has a table
            continue
        done = _python(trouble, program)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.slow
def test_the_way_out_of_a_refusal_is_the_one_on_its_page(
    strict_kafka: KafkaBroker, dataset: str, tmp_path: Path
) -> None:
    """The topic is deleted and recreated; the page's lines, in their order, get the committer to run."""
    pod = _as_in_a_pod(strict_kafka, dataset)
    with Scene(kafka=strict_kafka.bootstrap_servers, name=dataset, folder=tmp_path) as scene:
        scene.table.create()
        daemon = scene.started(**pod, **STAYS)
        scene.committed(2)
        scene.topics.recreate_staged()
        daemon.wait_refused("topic_id")
        _follow(Trouble(scene, daemon), PAGES["CommitterdRefusedToRun"])
        scene.committed(1)


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.slow
def test_a_table_that_was_waited_for_is_made_as_its_page_says(
    kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path
) -> None:
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path) as scene:
        daemon = scene.daemon()
        (offset,) = scene.stage(b"garbage")
        daemon.wait_ready(text="1 records wait: there is no table")
        (program,) = runbooks.programs(PAGES["CommitterdWaitingForTable"])
        done = _python(Trouble(scene, daemon), program)
        assert done.returncode == 0, done.stderr
        assert scene.topics.wait_answers([offset])[0].reason == "record_undecodable"


def _follow(trouble: Trouble, page: str) -> None:
    refused = True
    for line in runbooks.shell_lines(page):
        done = _shell(trouble, line)
        # What looks at a committer that refuses says so with its exit code.
        expected = 1 if refused and line == "committerd status" else 0
        assert done.returncode == expected, f"{line}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), line
        if "--apply" in line:
            refused = False
            trouble.daemon.wait_ready(text="active: version")
    assert not refused
