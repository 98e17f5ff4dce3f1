"""Finding the outcome of a transaction after a restart."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from committerd_client import (
    Bookmark,
    CommitClient,
    CommitTimeout,
    InvalidTransaction,
    KafkaUnavailable,
    OutcomeNotFound,
    RetryableConflict,
    SyncCommitClient,
    Undecided,
    history,
)
from committerd_common.messages import (
    COMMITTED,
    INVALID,
    RETRYABLE,
    UNDECIDED,
    Member,
    Members,
    Outcome,
    Refusal,
    Refusals,
)
from tests.producers.answering import answering, append, committed, never

UUID = "5e1dcf7e-1f0c-4b6e-9f57-0d2f1b3a7c11"
pytestmark = pytest.mark.kafka


async def test_another_process_finds_the_answer_from_a_bookmark(servers: str, dataset: str) -> None:
    with answering(servers, dataset):
        async with CommitClient(servers, dataset=dataset) as before:
            await before.commit_many([append() for _ in range(5)])
            kept = json.dumps([UUID, *before.bookmark()])
            handle = await before.submit(append(UUID))
            assert handle.bookmark.partition == before.bookmark().partition
            await handle.outcome()
            await before.commit_many([append() for _ in range(5)])
    uuid, *place = json.loads(kept)
    async with CommitClient(servers, dataset=dataset) as after:
        result = await after.resume(uuid, since=Bookmark(*place), timeout=0)
    assert (result.uuid, result.version, result.offset) == (UUID, 6, 5)


async def test_a_name_that_stays_finds_it_from_a_time(servers: str, dataset: str) -> None:
    since = datetime.now(UTC)
    with answering(servers, dataset):
        async with CommitClient(servers, dataset=dataset, producer="writer-7") as before:
            await before.commit(append(UUID))
    async with CommitClient(servers, dataset=dataset, producer="writer-7") as after:
        assert (await after.resume(UUID, since=since, timeout=0)).version == 1
    async with CommitClient(servers, dataset=dataset) as nameless:
        with pytest.raises(ValueError, match="Give both the same `producer`"):
            await nameless.resume(UUID, since=since)
        with pytest.raises(ValueError, match="no time zone"):
            await nameless.resume(UUID, since=datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(OutcomeNotFound):
            await nameless.resume(UUID, since=datetime.now(UTC) + timedelta(days=1), timeout=0)


async def test_an_answer_that_is_still_to_come_is_waited_for(servers: str, dataset: str) -> None:
    with answering(servers, dataset, never) as committer:
        async with CommitClient(servers, dataset=dataset) as client:
            bookmark = client.bookmark()
            with pytest.raises(CommitTimeout):
                await client.commit(append(UUID), timeout=0.3)
            waiting = asyncio.create_task(client.resume(UUID, since=bookmark, timeout=60))
            await asyncio.to_thread(committer.wait_for, 1)
            committer.publish(committer.records[0], [committed(committer.records[0], status=RETRYABLE)])
            with pytest.raises(RetryableConflict):
                await waiting


async def test_nobody_knows(servers: str, dataset: str) -> None:
    async with CommitClient(servers, dataset=dataset, dataset_uri="/nowhere/t.lance") as client:
        since = client.bookmark()
        with pytest.raises(OutcomeNotFound, match=r"the table was not asked .*: unknown, not failed") as raised:
            await client.resume(UUID, since=since, timeout=0)
        assert isinstance(raised.value, CommitTimeout)
        assert raised.value.uuid == UUID
        with pytest.raises(KafkaUnavailable, match="no partition 99"):
            await client.resume(UUID, since=Bookmark(99, 0), timeout=0)
        hanging = asyncio.create_task(client.resume(UUID, since=since, timeout=None))
        await asyncio.sleep(0.2)
        hanging.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((INVALID, COMMITTED), None),
        ((COMMITTED, INVALID), None),
        ((UNDECIDED, INVALID), InvalidTransaction),
        ((UNDECIDED,), Undecided),
    ],
)
async def test_of_several_answers_the_one_that_says_most_counts(
    servers: str, dataset: str, statuses: tuple[int, ...], expected: type[Exception] | None
) -> None:
    def answer(record: Any) -> Iterable[Outcome]:
        return [committed(record, status=status) for status in statuses]

    with answering(servers, dataset, answer):
        async with CommitClient(servers, dataset=dataset) as client:
            since = client.bookmark()
            await client.commit_many([append(UUID), append()], return_exceptions=True)
            if expected is None:
                assert (await client.resume(UUID, since=since, timeout=0)).version == 1
            else:
                with pytest.raises(expected):
                    await client.resume(UUID, since=since, timeout=0)


def test_the_synchronous_client_resumes(servers: str, dataset: str) -> None:
    with answering(servers, dataset), SyncCommitClient(servers, dataset=dataset) as client:
        since = client.bookmark()
        client.commit(append(UUID))
        assert client.resume(UUID, since=since, timeout=0).version == 1


# The table's history


@pytest.mark.pylance
async def test_where_no_answer_is_kept_the_tables_history_is_asked(servers: str, dataset: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    member, refused, by_hand = make_history(uri)
    async with CommitClient(servers, dataset=dataset, dataset_uri=uri) as client:
        since = client.bookmark()
        found = await client.resume(member, since=since, timeout=0)
        assert (found.version, found.offset, found.operation, found.transactions) == (2, 41, "append", 2)
        with pytest.raises(RetryableConflict, match="in words") as raised:
            await client.resume(refused, since=since, timeout=0)
        assert (raised.value.code, raised.value.conflicting_version) == ("conflict", 1)
        alone = await client.resume(by_hand, since=since, timeout=0)
        assert (alone.version, alone.offset) == (3, -1)
        with pytest.raises(OutcomeNotFound, match=r"of the table versions 1 to 3 don't have it"):
            await client.resume(UUID, since=since, timeout=0)


@pytest.mark.pylance
def test_a_table_that_can_not_be_asked_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert history.find(None, None, UUID) == (None, "the table was not asked (the client has no dataset_uri)")
    found, said = history.find(str(tmp_path / "none.lance"), {}, UUID)
    assert found is None
    assert said.startswith("the table was not asked (")
    make_history(str(tmp_path / "t.lance"))
    monkeypatch.setattr(history, "VERSIONS_MAX", 1)
    assert history.find(str(tmp_path / "t.lance"), None, UUID)[1] == "of the table versions 3 to 3 don't have it"
    monkeypatch.setattr(history, "find_spec", lambda _: None)
    assert "pylance is not installed" in history.find("t", None, UUID)[1]


def make_history(uri: str) -> tuple[str, str, str]:
    """A table of three versions; returns the uuids of a member and a refusal of the second, and of the third."""
    import base64

    import lance
    import pyarrow as pa
    from lance.fragment import write_fragments

    rows = pa.table({"id": [1]})
    lance.write_dataset(rows, uri)
    member, refused = append().uuid, append().uuid
    members = Members(members=[Member(uuid=append().uuid, offset=40), Member(uuid=member, offset=41)])
    refusal = Refusal(
        uuid=refused, offset=42, status=RETRYABLE, reason="conflict", message="in words", conflicting_version=1
    )
    properties = {
        "committerd.members": base64.b64encode(members.SerializeToString()).decode(),
        "committerd.refused": base64.b64encode(Refusals(refusals=[refusal]).SerializeToString()).decode(),
    }
    for number, said in ((1, properties), (2, {})):
        fragments = write_fragments(rows, uri, mode="append")
        transaction = lance.Transaction(
            read_version=number, operation=lance.LanceOperation.Append(fragments), transaction_properties=said
        )
        lance.LanceDataset.commit(uri, transaction)
    last: Any = lance.dataset(uri).read_transaction(3)
    return member, refused, last.uuid
