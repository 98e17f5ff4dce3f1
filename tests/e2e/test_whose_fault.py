"""Errors inside a committer are blamed on the record, the release or the machine: a real process, a real Kafka."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from committerd_common.messages import COMMITTED, INVALID, Outcome, Transaction
from harness.child import Launch, through
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import Scene, until
from tests.e2e.failing_committer import ERRORS, SAID_BYTES

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

NEVER = {"COMMIT__VERIFY_FILES": "never"}


class Faulty:
    """A dataset whose committer fails as `fail` says."""

    def __init__(self, kafka: str, name: str, folder: Path, launch: Launch) -> None:
        self._said = folder / "fails"
        self._said.write_bytes(b" " * SAID_BYTES)
        launched = through(launch, "tests.e2e.failing_committer", str(self._said))
        self.scene = Scene(kafka=kafka, name=name, folder=folder, launch=launched)

    def fail(self, how: str) -> None:
        """As the file of `failing_committer`; empty = nothing fails."""
        with self._said.open("r+b") as file:
            file.write(how.encode().ljust(SAID_BYTES))


@pytest.fixture
def faulty(kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Faulty]:
    made = Faulty(kafka.bootstrap_servers, dataset, tmp_path, launch)
    with made.scene as scene:
        scene.table.create()
        yield made


def bad(scene: Scene) -> Transaction:
    """An Append of a file by whose name the committer's failure recognises it."""
    transaction = scene.table.append()
    transaction.append.fragments[0].files[0].path = f"crafted-{secrets.token_hex(8)}.lance"
    return transaction


def statuses(answers: Sequence[Outcome]) -> list[tuple[int, str]]:
    return [(answer.status, answer.reason) for answer in answers]


@pytest.mark.parametrize(
    ("bug", "said"), [("bug .lance", "on a change of its own too (KeyError: 'a bug')"), ("bug", "not even one without")]
)
def test_a_release_with_a_bug_leaves_the_records_in_the_queue(faulty: Faulty, bug: str, said: str) -> None:
    scene = faulty.scene
    daemon = scene.started(**NEVER)
    scene.committed(1)
    faulty.fail(bug)
    offsets = scene.append(50)
    assert said in daemon.wait_refused("internal_errors")
    faulty.fail("")
    daemon.wait_ready(text="active")
    refused = [one for one in statuses(scene.topics.wait_answers(offsets)) if one != (COMMITTED, "")]
    assert refused in ([], [(INVALID, "internal_error")], [(INVALID, "internal_error")] * 2)


def test_a_thousand_crafted_records_are_refused_and_the_committer_goes_on(faulty: Faulty) -> None:
    scene = faulty.scene
    daemon = scene.started(**NEVER)
    faulty.fail("bug@validate crafted")
    one = bad(scene)
    crafted = []
    for _ in range(1_000):
        one.uuid = str(secrets.token_hex(4) + "-0000-4000-8000-" + secrets.token_hex(6))
        one.append.fragments[0].files[0].path = f"crafted-{secrets.token_hex(8)}.lance"
        crafted.append(one.SerializeToString())
    scene.committed(1)
    answers = scene.topics.wait_answers(scene.stage(*crafted), timeout=180)  # no good record in a version with them
    assert statuses(answers) == [(INVALID, "internal_error")] * 1_000
    scene.committed(1)
    assert list(daemon.lines("refused")) == []
    assert list(daemon.lines("self_trial.passed")) != []


@pytest.mark.parametrize("lacks", sorted(ERRORS.keys() - {"bug"}))
def test_records_wait_while_the_machine_lacks_something(faulty: Faulty, lacks: str) -> None:
    scene = faulty.scene
    daemon = scene.started(**NEVER)
    faulty.fail(lacks)
    offsets = scene.append(5)
    until(lambda: unavailable(daemon))
    until(lambda: daemon.metric("committerd_machine_errors_total", lacks=lacks) >= 6)  # more than lead to a refusal
    assert daemon.metric("committerd_dead_letters_total") == 0
    faulty.fail("")
    assert statuses(scene.topics.wait_answers(offsets)) == [(COMMITTED, "")] * 5
    until(lambda: daemon.ready()[0])


def test_a_record_under_which_only_the_machine_fails_is_refused(faulty: Faulty) -> None:
    scene = faulty.scene
    daemon = scene.started(**NEVER)
    faulty.fail("memory crafted")
    offsets = scene.stage(scene.table.append(), bad(scene), scene.table.append(), bad(scene), scene.table.append())
    refused, good = (INVALID, "budget_exceeded"), (COMMITTED, "")
    assert statuses(scene.topics.wait_answers(offsets)) == [good, refused, good, refused, good]
    until(lambda: daemon.ready()[0])


def unavailable(daemon: Daemon) -> bool:
    """Whether it is not ready because its machine lacks something."""
    ready, reason = daemon.ready()
    return not ready and reason.startswith("unavailable: ")


def said(daemon: Daemon, text: str) -> bool:
    """Whether a line of the log since the start has this text as the error."""
    return any(text in str(line.get("error", "")) for line in daemon.lines(since_start=True))


def require_no_answers(scene: Scene, offsets: Sequence[int]) -> None:
    with pytest.raises(AssertionError):
        scene.topics.wait_answers(offsets, timeout=6)


def test_records_wait_at_a_limit_of_files(faulty: Faulty) -> None:
    daemon = faulty.scene.started(**NEVER)
    faulty.scene.committed(1)
    faulty.fail("RLIMIT_NOFILE 5")
    until(lambda: daemon.open_files_max() == 5)
    offsets = faulty.scene.append(5)
    until(lambda: said(daemon, "Too many open files"))
    require_no_answers(faulty.scene, offsets)
    faulty.fail("")
    assert statuses(faulty.scene.topics.wait_answers(offsets)) == [(COMMITTED, "")] * 5
    until(lambda: daemon.ready()[0])
