"""Ctrl-C during a call, and errors of many commits: what is staged is named, and unknown is told from refused."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from committerd_client import CommitManyFailed, CommitTimeout, RetryableConflict, SyncCommitClient
from committerd_common.messages import RETRYABLE, Outcome, Transaction
from tests.producers.answering import answering, append, committed, never, staged_values

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.parametrize("call", ["client.append([{'id': 2}], timeout=60)", "client.commit(work, timeout=60)"])
def test_ctrl_c_says_which_transaction_is_staged(servers: str, dataset: str, tmp_path: Path, call: str) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"id": [1]}), uri)
    program = f"""
        import lance, pyarrow as pa
        from committerd_client import SyncCommitClient, staging

        table = lance.dataset({uri!r})
        work = staging.restore(table, 1)
        with SyncCommitClient({servers!r}, dataset={dataset!r}, dataset_uri={uri!r}) as client:
            {call}
    """
    running = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PYTHONPATH": f"{ROOT}/producers"},
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not (staged := staged_values(servers, dataset)) and time.monotonic() < until:
        assert running.poll() is None, running.communicate()[1]
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert "KeyboardInterrupt" in said
    uuid = Transaction.FromString(staged[0]).uuid
    assert f"transaction {uuid} is staged at offset 0 of {dataset}.staged, and will be committed all the same" in said


@pytest.mark.kafka
def test_many_commits_tell_unknown_from_refused_and_each_error_has_its_work(servers: str, dataset: str) -> None:
    first, second, third = append(), append(), append()

    def answer(record: Any) -> Iterable[Outcome]:
        uuid = Transaction.FromString(record.value).uuid
        if uuid == first.uuid:
            return [committed(record)]
        return [committed(record, status=RETRYABLE, reason="conflict")] if uuid == second.uuid else []

    with answering(servers, dataset, answer), SyncCommitClient(servers, dataset=dataset) as client:
        with pytest.raises(CommitManyFailed, match="1 of 3 transactions were refused and 1 of 3") as failed:
            client.commit_many([first, second, third], timeout=3)
        (refused,) = failed.value.refused
        assert isinstance(refused, RetryableConflict)
        assert [(type(one), one.uuid) for one in failed.value.unknown] == [(CommitTimeout, third.uuid)]


@pytest.mark.kafka
@pytest.mark.pylance
def test_a_call_without_an_outcome_can_be_settled_with_the_same_uuid(
    servers: str, dataset: str, tmp_path: Path
) -> None:
    uri = tmp_path / "t.lance"
    lance.write_dataset(pa.table({"id": [1]}), uri)
    with SyncCommitClient(servers, dataset=dataset, dataset_uri=uri) as client:
        with answering(servers, dataset, never), pytest.raises(CommitTimeout) as late:
            client.append([{"id": 2}], timeout=1)
        error = pickle.loads(pickle.dumps(late.value))
        assert error.work.transaction.uuid == error.uuid
        with answering(servers, dataset):
            assert client.commit(error.work).uuid == error.uuid
