"""The synchronous client against a real Kafka; the tests play the committer."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import pydoc
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_type_hints

import pytest

from committerd_client import (
    ClientClosed,
    CommitClient,
    CommitManyFailed,
    CommitTimeout,
    KafkaUnavailable,
    Reexecution,
    RetryableConflict,
    Staged,
    SyncCommitClient,
)
from committerd_client.headers import RecordOptions
from committerd_client.options import CommitOptions
from committerd_common.messages import RETRYABLE, Outcome
from tests.producers.answering import answering, append, committed, make_topics, never, staged_values

UUID = "5e1dcf7e-1f0c-4b6e-9f57-0d2f1b3a7c11"


@pytest.mark.kafka
def test_many_threads_commit_through_one_client(servers: str, dataset: str) -> None:
    transactions = [append() for _ in range(200)]
    with answering(servers, dataset), SyncCommitClient(servers, dataset=dataset) as client:
        with ThreadPoolExecutor(16) as threads:
            results = list(threads.map(client.commit, transactions))
        assert [result.uuid for result in results] == [transaction.uuid for transaction in transactions]
        assert {result.version for result in results} == set(range(1, 201))


@pytest.mark.kafka
def test_handles_wait_in_any_thread_and_keep_their_answer(servers: str, dataset: str) -> None:
    with answering(servers, dataset, never) as committer:
        with SyncCommitClient(servers, dataset=dataset) as client:
            handle = client.submit(append(UUID))
            assert (handle.uuid, handle.offset, handle.done()) == (UUID, 0, False)
            assert "pending" in repr(handle)
            with pytest.raises(CommitTimeout, match="unknown, not failed"):
                handle.outcome(timeout=0.1)
            committer.wait_for(1)
            with ThreadPoolExecutor(4) as threads:
                waiting = [threads.submit(handle.outcome, 60) for _ in range(4)]
                committer.publish(committer.records[0], [committed(committer.records[0])])
                assert {one.result().version for one in waiting} == {1}
            unanswered = client.submit(append())
        assert handle.outcome().version == 1
        with pytest.raises(ClientClosed, match="unknown, not failed"):
            unanswered.outcome()


@pytest.mark.kafka
def test_reexecute_runs_in_the_thread_of_the_caller(servers: str, dataset: str) -> None:
    def answer(record: Any) -> Iterable[Outcome]:
        return [committed(record, **({"status": RETRYABLE, "conflicting_version": 7} if record.offset < 2 else {}))]

    asked: list[tuple[Reexecution, threading.Thread]] = []

    def again(wanted: Reexecution) -> Any:
        asked.append((wanted, threading.current_thread()))
        return append()

    with answering(servers, dataset, answer) as committer, SyncCommitClient(servers, dataset=dataset) as client:
        result = client.commit(append(UUID), reexecute=again)
        committer.wait_for(3)
    assert result.attempts == 3
    assert [wanted.attempt for wanted, _ in asked] == [2, 3]
    assert {thread for _, thread in asked} == {threading.current_thread()}
    assert asked[0][0].error.conflicting_version == 7
    assert [committer.headers(i).get("retry-of") for i in range(3)] == [None, *(w.error.uuid for w, _ in asked)]


@pytest.mark.kafka
def test_what_took_long_is_brought_up_to_date_in_the_thread_of_the_caller(servers: str, dataset: str) -> None:
    def answer(record: Any) -> Iterable[Outcome]:
        return [committed(record, **({"status": RETRYABLE} if record.offset < 1 else {}))]

    asked: list[tuple[Reexecution, threading.Thread]] = []
    done = [Staged(transaction=append(), can_catch_up=True), Staged(transaction=append())]

    def again(wanted: Reexecution) -> Any:
        asked.append((wanted, threading.current_thread()))
        time.sleep(0.4 if len(asked) == 1 else 0)
        return done[len(asked) - 1]

    with answering(servers, dataset, answer), SyncCommitClient(servers, dataset=dataset) as client:
        result = client.commit(append(UUID), reexecute=again)
    assert (result.attempts, result.uuid) == (2, done[1].transaction.uuid)
    assert asked[1][0].work is done[0]
    assert {thread for _, thread in asked} == {threading.current_thread()}


@pytest.mark.kafka
def test_an_error_of_reexecute_ends_the_call_and_so_does_a_close_meanwhile(servers: str, dataset: str) -> None:
    def refused(record: Any) -> Iterable[Outcome]:
        return [committed(record, status=RETRYABLE)]

    def fails(_: Reexecution) -> Any:
        raise LookupError("no such row")

    def closes(_: Reexecution) -> Any:
        client.close()
        return append()

    with answering(servers, dataset, refused), SyncCommitClient(servers, dataset=dataset) as client:
        with pytest.raises(LookupError, match="no such row"):
            client.commit(append(), reexecute=fails)
        with pytest.raises(ClientClosed):
            client.commit(append(), reexecute=closes)


@pytest.mark.kafka
def test_commit_many_and_a_refusal(servers: str, dataset: str) -> None:
    def answer(record: Any) -> Iterable[Outcome]:
        return [committed(record, **({"status": RETRYABLE} if record.offset == 1 else {}))]

    transactions = [append() for _ in range(3)]
    with answering(servers, dataset, answer), SyncCommitClient(servers, dataset=dataset) as client:
        with pytest.raises(CommitManyFailed, match="1 of 3") as raised:
            client.commit_many(iter(transactions))
        assert [r.uuid for r in client.commit_many([append(), append()], return_exceptions=True)]
    first, second, third = raised.value.results
    assert isinstance(second, RetryableConflict)
    assert (first.uuid, third.uuid) == (transactions[0].uuid, transactions[2].uuid)


@pytest.mark.kafka
def test_closing_and_starting(servers: str, dataset: str) -> None:
    before = set(threading.enumerate())
    client = SyncCommitClient(servers, dataset=dataset)
    assert set(threading.enumerate()) <= before, "nothing is contacted before the first call"
    with answering(servers, dataset):
        client.commit(append())
    client.close()
    client.close()
    with pytest.raises(ClientClosed, match="make another client"):
        client.commit(append())
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread


@pytest.mark.kafka
def test_whoever_waits_hears_that_the_client_was_closed(servers: str, dataset: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        with answering(servers, dataset, never) as committer, SyncCommitClient(servers, dataset=dataset) as client:
            waiting = [threads.submit(client.commit, append()) for _ in range(8)]
            committer.wait_for(8)
        for one in waiting:
            with pytest.raises(ClientClosed, match="unknown, not failed"):
                one.result(60)


@pytest.mark.kafka
def test_a_client_that_nobody_uses_any_more_ends(servers: str, dataset: str) -> None:
    before = set(threading.enumerate())
    client = SyncCommitClient(servers, dataset=dataset)
    handle = client.submit(append())
    mine = set(threading.enumerate()) - before
    del client
    gc.collect()
    assert all(thread.is_alive() for thread in mine), "a handle still needs them"
    del handle
    gc.collect()
    for thread in mine:
        thread.join(60)
        assert not thread.is_alive(), thread


@pytest.mark.kafka
def test_a_failed_start_can_be_tried_again(servers: str, dataset: str) -> None:
    name = f"{dataset}-later"
    client = SyncCommitClient(servers, dataset=name, connect_timeout=3)
    with pytest.raises(KafkaUnavailable):
        client.start()
    make_topics(servers, name)
    for _ in range(20):  # a busy Kafka may not respond within three seconds
        with contextlib.suppress(KafkaUnavailable):
            client.start()
            break
    with answering(servers, name), client:
        assert client.commit(append()).version == 1


FORKING = """
import os, sys, threading, time
from committerd_client import SyncCommitClient
from tests.producers.answering import append

servers, dataset = sys.argv[1:]
client = SyncCommitClient(servers, dataset=dataset)
client.commit(append(), timeout=60)
handle = client.submit(append())
# Other threads use the client while the process forks: whatever lock they hold stays locked in the child.
stop = threading.Event()
def busy():
    while not stop.is_set():
        client.commit(append(), timeout=60)
threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads:
    thread.start()
children = []
for number in range(3):
    time.sleep(0.05)
    pid = os.fork()
    if pid == 0:
        before = threading.active_count()
        try:
            if not handle.done():
                try:
                    handle.outcome()
                except RuntimeError as error:
                    assert "resume" in str(error), error
            assert client.commit(append(), timeout=60).version
            with client:
                client.commit(append(), timeout=60)
        except BaseException as error:
            print("child", repr(error), file=sys.stderr)
            os._exit(3)
        if number == 0:
            sys.exit(0)  # with everything that Python does at an end
        os._exit(0)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
stop.set()
for thread in threads:
    thread.join()
# The parent's sockets still work.
assert client.commit(append(), timeout=60).version
assert handle.outcome(timeout=60).version
print(codes)
"""


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)


@pytest.mark.kafka
def test_a_forked_process_has_a_client_of_its_own_and_leaves_the_parents_alone(servers: str, dataset: str) -> None:
    with answering(servers, dataset):
        done = python(FORKING, servers, dataset)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 0, 0]\n", "")


@pytest.mark.kafka
def test_a_process_ends_although_nobody_closed_the_client(servers: str, dataset: str) -> None:
    code = """
import sys
from committerd_client import SyncCommitClient
from tests.producers.answering import append
client = SyncCommitClient(sys.argv[1], dataset=sys.argv[2])
handle = client.submit(append())
print("end")
"""
    done = python(code, servers, dataset)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
    assert len(staged_values(servers, dataset)) == 1


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


WITHIN: dict[str, Callable[[str], object]] = {
    "start": lambda server: SyncCommitClient(server, dataset="d", timeout=0.7).start(),
    "connect_timeout": lambda server: SyncCommitClient(server, dataset="d", connect_timeout=0.7).start(),
    "commit": lambda server: SyncCommitClient(server, dataset="d").commit(append(), timeout=0.7),
    "submit": lambda server: SyncCommitClient(server, dataset="d").submit(append(), timeout=0.7),
    "commit_many": lambda server: SyncCommitClient(server, dataset="d").commit_many([append()], timeout=0.7),
    "append": lambda server: SyncCommitClient(server, dataset_uri="/nowhere/d").append([{"a": 1}], timeout=0.7),
}


@pytest.mark.parametrize("call", WITHIN)
@pytest.mark.parametrize("away", ["no server", "a server that says nothing"])
def test_a_timeout_bounds_connecting_too(call: str, away: str, deaf: str) -> None:
    before, began = set(threading.enumerate()), time.monotonic()
    with pytest.raises(KafkaUnavailable):
        WITHIN[call]("127.0.0.1:1" if away == "no server" else deaf)
    assert time.monotonic() - began < 20, "by default it is 30 s"
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread


@pytest.mark.kafka
def test_what_connecting_took_is_not_left_for_the_outcome(servers: str, dataset: str) -> None:
    with answering(servers, dataset, never), SyncCommitClient(servers, dataset=dataset) as client:
        client.close()
    client = SyncCommitClient(servers, dataset=dataset)
    running, left = client._started(60)
    assert isinstance(left, float)
    assert 0 < left < 60
    assert client._started(60) == (running, 60), "it is connected already"
    client.close()


def test_the_arguments_are_those_of_the_async_client() -> None:
    assert inspect.signature(SyncCommitClient) == inspect.signature(CommitClient)
    help_text = pydoc.plain(pydoc.render_doc(SyncCommitClient))
    for name in inspect.signature(CommitClient).parameters:
        assert f"{name}: " in help_text, "it has a type"
        assert f"`{name}`" in help_text or name == "bootstrap_servers", "it is described"
    assert "connects at the first call, or in `start`" in help_text
    assert set(get_type_hints(CommitOptions)) == set(get_type_hints(RecordOptions))


def test_what_can_not_be_right_is_said_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="is not a dataset name"):
        SyncCommitClient("127.0.0.1:9092", dataset="s3://b/t")
    with pytest.raises(ValueError, match="is more than max_record_bytes"):
        SyncCommitClient("127.0.0.1:9092", dataset="d", claim_check_above=2**30)
