"""Helpers on a table in S3: the storage options of the dataset reach every file that they write or read."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import lance
import pyarrow as pa
import pytest
from pydantic import SecretStr

from committerd.committer import direct
from committerd.queue.outcomes import Status
from committerd.settings.s3 import S3Settings
from committerd.stores.s3 import S3Store, s3_client, s3_place
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions, Sources
from committerd.table.versions import Table
from committerd_client import CommitTimeout, Staged, staging
from committerd_client.leftovers import Leftovers, data_keys, index_keys
from harness.s3 import S3Endpoint

pytestmark = [pytest.mark.pylance, pytest.mark.s3]


@pytest.fixture
async def table(s3: S3Endpoint) -> AsyncIterator[tuple[str, Table]]:
    """A table of 40 rows in a new bucket: its location for pylance, and for committerd."""
    uri = f"s3://{s3.make_bucket()}/lake/t.lance"
    rows = pa.table({"id": range(40), "text": ["a"] * 40})
    lance.write_dataset(rows, uri, storage_options=s3.storage_options(), max_rows_per_file=10)
    place = s3_place(uri)
    assert place is not None
    settings = S3Settings(
        endpoint_url=s3.url,
        region=s3.region,
        addressing_style="path",
        access_key_id=SecretStr(s3.access_key),
        secret_access_key=SecretStr(s3.secret_key),
    )
    client = s3_client(settings)
    yield uri, Table(S3Store(client, place))
    await client.aclose()


async def test_all_that_write_files_write_them_there(table: tuple[str, Table], s3: S3Endpoint) -> None:
    uri, queue = table

    def opened() -> lance.LanceDataset:
        return lance.dataset(uri, storage_options=s3.storage_options())

    new = pa.table({"id": [39, 40], "text": ["b", "b"]})
    changes: list[Callable[[lance.LanceDataset], Staged | None]] = [
        lambda at: staging.create_index(at, "id", "BTREE"),
        lambda at: staging.merge_insert(at, new, on="id"),
        lambda at: staging.update(at, {"text": "'c'"}, "id < 5"),
        lambda at: staging.delete(at, "id = 7"),
        lambda at: staging.add_columns(at, {"twice": "id * 2"}),
        lambda at: staging.alter_columns(at, {"path": "twice", "data_type": pa.int32()}),
        lambda at: staging.compact_files(at).rewrite(range(100, 110)),
        staging.optimize_indices,
    ]
    await commit(queue, staging.reserve_fragments(opened(), 110))
    for change in changes:
        staged = change(opened())
        assert staged is not None
        await commit(queue, staged)
    read = opened().to_table().sort_by("id").to_pylist()
    assert [row["id"] for row in read] == [one for one in range(41) if one != 7]
    assert all(row["twice"] == 2 * row["id"] for row in read)
    assert [row["text"] for row in read if row["text"] != "a"] == ["c"] * 5 + ["b"] * 2
    assert len(opened().get_fragments()) == 2  # indexed rows, and rows that are not in the index
    assert opened().describe_indices()[0].num_rows_indexed == 40


async def commit(table: Table, staged: Staged) -> None:
    rng = random.Random(0)
    answer = await direct.commit(
        table,
        staged.transaction,
        options=PrepareOptions(),
        sources=Sources(wall_clock=lambda: datetime.now(UTC), random=rng, new_uuid=uuid.uuid4),
        backoff=Backoff(rng),
    )
    assert answer.status is Status.COMMITTED, answer


async def test_files_that_no_version_will_name_are_removed_there(table: tuple[str, Table], s3: S3Endpoint) -> None:
    uri, queue = table

    def opened() -> lance.LanceDataset:
        return lance.dataset(uri, storage_options=s3.storage_options())

    async def keys() -> set[str]:
        return {*await queue.store.list("data/"), *await queue.store.list(folder)}

    await commit(queue, staging.create_index(opened(), "id", "BTREE"))
    other = staging.create_index(opened(), "text", "BTREE")
    done = staging.compact_files(opened(), target_rows_per_fragment=20)
    leftovers = Leftovers()
    indices = index_keys(other.transaction, opened())
    leftovers.wrote(indices)
    (folder,) = indices
    new = {key for group in done.groups for key in data_keys(group.new)}
    leftovers.wrote(new)
    written = await keys()
    of_index = {one for one in written if one.startswith(folder)}
    assert len(of_index) > 1
    assert len(new) == 2
    leftovers.sends(indices)
    leftovers.ended(CommitTimeout("no outcome"))
    leftovers.remove(opened())
    assert await keys() == written - new
    leftovers.refused()
    leftovers.remove(opened())
    assert await keys() == written - new - of_index
    assert opened().to_table(filter="id = 7").num_rows == 1
