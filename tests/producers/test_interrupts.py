"""Ctrl-C during a call, and errors of many commits: what is staged is named, and unknown is told from refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
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
    # Another process may read the record before the client has Kafka's acknowledgement: the program interrupts itself.
    # It sets the handler because a program that a shell starts in the background ignores SIGINT.
    program = f"""
        import lance, os, pyarrow as pa, signal, threading, time
        from committerd_client import SyncCommitClient, staging

        def interrupt():
            while not any(one.offset == 0 for one in client._running.client._submissions):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        table = lance.dataset({uri!r})
        work = staging.restore(table, 1)
        with SyncCommitClient({servers!r}, dataset={dataset!r}, dataset_uri={uri!r}) as client:
            threading.Thread(target=interrupt, daemon=True).start()
            {call}
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = {"PYTHONPATH": f"{ROOT}/producers"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "KeyboardInterrupt" in done.stderr
    uuid = Transaction.FromString(staged_values(servers, dataset)[0]).uuid
    note = f"transaction {uuid} is staged at offset 0 of {dataset}.staged, and will be committed all the same"
    assert note in done.stderr


@pytest.mark.kafka
def test_many_commits_tell_unknown_from_refused_and_each_error_has_its_work(servers: str, dataset: str) -> None:
    first, second, third = append(), append(), append()

    def answer(record: Any) -> Iterable[Outcome]:
        uuid = Transaction.FromString(record.value).uuid
        if uuid == first.uuid:
            return [committed(record)]
        return [committed(record, status=RETRYABLE, reason="conflict")] if uuid == second.uuid else []

    with answering(servers, dataset, answer), SyncCommitClient(servers, dataset=dataset) as client:
        client.start()  # the time-out is for the outcomes alone
        with pytest.raises(CommitManyFailed, match="1 of 3 transactions were refused and 1 of 3") as failed:
            client.commit_many([first, second, third], timeout=6)
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
        client.start()  # the time-out is for the call alone
        with answering(servers, dataset, never), pytest.raises(CommitTimeout) as late:
            client.append([{"id": 2}], timeout=6)
        error = pickle.loads(pickle.dumps(late.value))
        assert error.work.transaction.uuid == error.uuid
        with answering(servers, dataset):
            assert client.commit(error.work).uuid == error.uuid
