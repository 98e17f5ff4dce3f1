"""A dataset with its queue, on a real Kafka, with real committers, and pylance as reader and writer."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from committerd_client import Staged
from committerd_common.branches import branch_queue, branch_uri
from committerd_common.messages import Outcome, Status, Transaction
from harness.audit import Evidence, Expected, collect, contradictions
from harness.child import ChildProcess, Launch, without_waits
from harness.daemon import Daemon
from harness.lance_table import LanceTable
from harness.places import StorePlace
from harness.topics import Header, RecordId, Topics

QUICK = {
    "KAFKA__SESSION_TIMEOUT_MS": "3000",
    "KAFKA__HEARTBEAT_INTERVAL_MS": "500",
    "KAFKA__FETCH_MAX_WAIT_MS": "100",
    "KAFKA__REQUEST_TIMEOUT_MS": "5000",
    "KAFKA__DELIVERY_TIMEOUT_MS": "8000",
    "KAFKA__METADATA_MAX_AGE_MS": "2000",
    "KAFKA__RECONNECT_BACKOFF_MAX_MS": "500",
    "DAEMON__REFUSED_RETRY_SECONDS": "1",
    "COMMIT__REFUSAL_INTERVAL_SECONDS": "0.1",
    "STORE__RECHECK_SECONDS": "1",
}
"""Short timeouts and intervals, for a local broker and a waiting test."""
STAYS = {
    "KAFKA__SESSION_TIMEOUT_MS": "60000",
    "KAFKA__REQUEST_TIMEOUT_MS": "30000",
    "KAFKA__DELIVERY_TIMEOUT_MS": "30000",
}
"""For a busy machine, which gives a process or Kafka no processor for a while. A committer stays in its group, so that
it starts only once, and a command waits for Kafka.
"""


class Scene:
    """A dataset. Closing it stops its daemons."""

    def __init__(
        self,
        *,
        kafka: str,
        name: str,
        folder: Path,
        place: StorePlace | None = None,
        branch: str = "",
        launch: Launch = ChildProcess,
    ) -> None:
        """`place`: location of the table; default in `folder`. `branch`: of the table, which must exist already.

        `launch`: how committerd is started.
        """
        self.name = branch_queue(name, branch)
        """The name of its queue."""
        self._launch = launch
        self.folder = folder
        self._place = place or StorePlace(str(folder / "table.lance"))
        self.table = LanceTable(branch_uri(self._place.uri, branch), self._place.storage_options)
        self._dataset = {"DATASET__NAME": name, "DATASET__URI": self._place.uri}
        if branch:
            self._dataset["DATASET__BRANCH"] = branch
        self.topics = Topics(kafka, self.name)
        self._kafka = kafka
        self._daemons: list[Daemon] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.topics)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def daemon(self, **settings: str) -> Daemon:
        """Start a committer of this dataset. `settings`: with their environment names (`COMMIT__VERIFY_FILES`)."""
        made = Daemon(
            name=self.name,
            uri=self.table.uri,
            kafka=self._kafka,
            settings=self._dataset | QUICK | dict(self._place.settings) | settings,
            log=self.folder / f"committerd-{len(self._daemons) + 1}.log",
            launch=self._launch,
        )
        self._daemons.append(made)
        return self._stack.enter_context(made)

    def branched(self, branch: str, folder: Path) -> Scene:
        """A branch of this dataset, which must exist already; a context manager. `folder`: for its logs."""
        folder.mkdir(parents=True)
        return Scene(
            kafka=self._kafka,
            name=self._dataset["DATASET__NAME"],
            folder=folder,
            place=self._place,
            branch=branch,
            launch=self._launch,
        )

    def started(self, **settings: str) -> Daemon:
        """Start a committer, and wait until it is active."""
        made = self.daemon(**settings)
        made.wait_ready(text="active")
        return made

    # Staging

    def stage(
        self,
        *transactions: Transaction | Staged | bytes | None,
        headers: Sequence[Header] | Mapping[str, str] = (),
    ) -> list[int]:
        """Stage transactions unchanged, all with the same headers; returns their offsets."""
        return self.topics.stage(*map(_value, transactions), headers=headers)

    def stage_create(self, staged: Staged) -> int:
        """Stage a create with its headers; returns its offset."""
        headers = {"create-only": "true", "create-options": json.dumps(dict(staged.create_options))}
        return self.stage(staged, headers=headers)[0]

    def append(self, count: int = 1, **options: Any) -> list[int]:
        """Stage `count` Appends of one row; returns their offsets."""
        return self.stage(*(self.table.append(**options) for _ in range(count)))

    def committed(self, count: int = 1) -> list[int]:
        """Commit `count` Appends of one row through the queue; returns their ids."""
        transactions = [self.table.append() for _ in range(count)]
        assert {answer.status for answer in self.ask(*transactions)} == {Status.COMMITTED}
        return [i for transaction in transactions for i in self.table.brought[transaction.uuid]]

    def ask(self, *transactions: Transaction | Staged | bytes | None, **headers: str) -> list[Outcome]:
        """Stage transactions and wait for their outcomes; `app_id="a"` is header `app-id`."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return self.topics.wait_answers(self.stage(*transactions, headers=named))

    # Operators

    def command(self, *words: str, good: bool = True) -> str:
        """Run `committerd` with this dataset's settings; returns its output. `good`: whether it must succeed."""
        chosen = {
            **self._dataset,
            "KAFKA__BOOTSTRAP_SERVERS": self._kafka,
            **STAYS,
            **self._place.settings,
        }
        bare = {k: v for k, v in os.environ.items() if not k.startswith("COMMITTERD_")}
        log = Path(tempfile.mkstemp(prefix="committerd-", suffix=".log", dir=self.folder)[1])
        command = [sys.executable, "-m", "committerd", *words]
        environment = bare | {f"COMMITTERD_{name}": value for name, value in chosen.items()}
        process = self._launch(command, log=log, environment=environment)
        try:
            code = process.wait(timeout=180)
        finally:
            process.kill()
        printed = log.read_text()
        assert (code == 0) is good, f"exit code {code}\n{printed}"
        return without_waits(printed)

    def shown_position(self) -> dict[str, Any]:
        """The output of `position show`."""
        found: dict[str, Any] = json.loads(self.command("position", "show", "--json"))
        return found

    def position(self) -> dict[str, Any]:
        """The position that the latest version carries."""
        found: dict[str, Any] = json.loads(self.table.metadata()["committerd.position"])
        return found

    def adopt(self, daemon: Daemon, *words: str, command: str = "adopt") -> None:
        """Run `committerd position adopt` (or `rewind`) with `--apply`; waits until the committer runs again."""
        before = self.table.version
        self.command("position", command, *words, "--apply", "--reason", "the operator has looked")
        said = self.table.open().read_transaction(before + 1).transaction_properties
        assert "the operator has looked" in said.values()
        daemon.wait_ready(text="active")

    # Checks

    def expected_ids(self, *foreign: int) -> set[int]:
        """Ids of the rows of all transactions that a readable version commits, and the `foreign` ids."""
        committed = {member.uuid for version in self.table.versions() for member in version.members}
        return {i for uuid in committed for i in self.table.brought[uuid]} | set(foreign)

    def audit(
        self,
        ids: Collection[int],
        *,
        unanswered: Collection[RecordId] = (),
        rewound: bool = False,
        cleaned: bool = False,
    ) -> Evidence:
        """Fail unless topics and table are consistent, and the latest version has exactly these rows, each once."""
        evidence = collect(self.topics, self.table)
        found = contradictions(
            evidence, Expected(ids=ids, unanswered=frozenset(unanswered), rewound=rewound, cleaned=cleaned)
        )
        assert not found, "\n".join(found)
        return evidence


def until(holds: Callable[[], bool], *, seconds: float = 120) -> None:
    """Poll until `holds` returns True; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def wait_one_active(*daemons: Daemon) -> None:
    """Wait until one of these committers is active and all others are standbys, whichever they are.

    On a busy machine any of them may have lost its session since it was active.
    """
    wanted = ["active", *["standby"] * (len(daemons) - 1)]
    until(lambda: sorted(one.ready()[1].partition(":")[0] for one in daemons) == wanted, seconds=120)


def _value(transaction: Transaction | Staged | bytes | None) -> bytes | None:
    if isinstance(transaction, Staged):
        transaction = transaction.transaction
    if isinstance(transaction, Transaction):
        return bytes(transaction.SerializeToString())
    return transaction
