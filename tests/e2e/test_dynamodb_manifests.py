"""One table on a real S3 server with a real DynamoDB: committerd and both versions of pylance use it."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio
import lance
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from committerd.commands.system import sources
from committerd.committer import direct
from committerd.errors import CorruptTable
from committerd.queue.outcomes import Status
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.s3 import S3Settings
from committerd.stores.external_manifests import ExternalManifests
from committerd.stores.open import Stores
from committerd.stores.port import ObjectStore
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions
from committerd.table.versions import Table
from committerd.telemetry import Metrics
from committerd_client import staging
from committerd_common.messages import Transaction
from committerd_common.paths import parse_staging_name
from harness.dynamodb import DynamoDBEndpoint
from harness.fault_proxy import DROP_ANSWER, FaultProxy
from harness.lance_table import run_in_4
from harness.s3 import S3Endpoint
from tests.contracts.entries import Trouble, troubled_entries, troubled_objects
from tests.producers.old_pylance import old_pylance

pytestmark = [pytest.mark.s3, pytest.mark.dynamodb, pytest.mark.pylance]

STEPS = ["objects.put _versions", "entries.put_if_absent", "objects.copy", "entries.replace", "objects.delete"]
"""The steps of one commit; the second one decides."""
_STORAGE: Final = "2.0"
"""Both versions of pylance can write and read it."""
_OPEN_AND_APPEND_IN_4 = """
import json, sys, lance, pyarrow as pa
uris, options = json.loads(sys.argv[1]), json.loads(sys.argv[2])
seen = []
for uri in uris:
    table = lance.dataset(uri, storage_options=options)
    before = [table.version, sorted(table.to_table()["id"].to_pylist())]
    row = pa.table({"id": pa.array([44], pa.int64())})
    table = lance.write_dataset(row, uri, mode="append", storage_options=options)
    seen.append([*before, table.version, sorted(table.to_table()["id"].to_pylist())])
print(json.dumps([lance.__version__, seen]))
"""
_WRITE_IN_4 = """
import json, sys, lance, pyarrow as pa
row = pa.table({"id": pa.array([44], pa.int64())})
lance.write_dataset(row, sys.argv[1], mode="append", storage_options=json.loads(sys.argv[2]))
"""


class CrashError(BaseException):
    """The process ends here."""


@dataclass
class Ground:
    """A bucket, a DynamoDB table, and their endpoints."""

    s3: S3Endpoint
    dynamodb: DynamoDBEndpoint
    bucket: str
    table: str
    stores: Stores

    @property
    def options(self) -> dict[str, str]:
        return {**self.s3.storage_options(), **self.dynamodb.storage_options()}

    def create(self, name: str) -> str:
        """Make a table of one row with pylance; returns its URI."""
        uri = f"s3+ddb://{self.bucket}/{name}.lance?ddbTableName={self.table}"
        lance.write_dataset(rows([0]), uri, storage_options=self.options, data_storage_version=_STORAGE)
        return uri

    def stage(self, uri: str, ids: Sequence[int], *, read_version: int = 1) -> Transaction:
        fragments = lance.fragment.write_fragments(
            rows(ids), uri, mode="append", storage_options=self.options, data_storage_version=_STORAGE
        )
        return staging.append(fragments, read_version=read_version)

    async def commit(self, uri: str, ids: Sequence[int], store: ObjectStore | None = None) -> direct.DirectOutcome:
        return await commit(store or self.stores.open(uri), self.stage(uri, ids), self.stores)

    def open(self, uri: str) -> Any:
        return lance.dataset(uri, storage_options=self.options)

    def troubled(self, uri: str, trouble: Trouble) -> ObjectStore:
        """The table's store, whose parts fail."""
        store = self.stores.open(uri)
        assert isinstance(store, ExternalManifests)
        return ExternalManifests(
            troubled_objects(store._objects, trouble), troubled_entries(store._entries, trouble), uri=uri
        )

    def staged(self, name: str) -> list[str]:
        """Names of manifests that are staged."""
        listed = self.s3.client().list_objects_v2(Bucket=self.bucket, Prefix=f"{name}.lance/_versions/")
        names = (entry["Key"].rpartition("/")[2] for entry in listed.get("Contents", ()))
        return [name for name in names if parse_staging_name(name)]

    def paths(self, name: str) -> list[str]:
        """File names in the entries, by version."""
        items = [item for item in self.dynamodb.items(self.table) if item["base_uri"] == f"{name}.lance"]
        return [item["path"].rpartition("/")[2] for item in items]


async def commit(store: ObjectStore, transaction: Transaction, stores: Stores) -> direct.DirectOutcome:
    return await direct.commit(
        Table(store),
        transaction,
        options=PrepareOptions(),
        sources=sources(),
        open_store=stores.open,
        backoff=Backoff(random.Random(1)),
    )


def rows(ids: Sequence[int]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def ids_of(table: Any) -> list[int]:
    return sorted(table.to_table()["id"].to_pylist())


def manifests_of(versions: int) -> list[str]:
    return [f"{2**64 - 1 - version:020}.manifest" for version in range(1, versions + 1)]


def opened(s3: S3Endpoint, dynamodb: DynamoDBEndpoint) -> Stores:
    settings = {
        "endpoint_url": s3.url,
        "region": s3.region,
        "access_key_id": s3.access_key,
        "secret_access_key": s3.secret_key,
        "addressing_style": "path",
    }
    return Stores(S3Settings.model_validate(settings), DynamoDBSettings(endpoint_url=dynamodb.url))


@pytest.fixture(scope="module")
def place(s3: S3Endpoint, dynamodb: DynamoDBEndpoint) -> tuple[str, str]:
    return s3.make_bucket(), dynamodb.make_table()


@pytest.fixture
async def ground(s3: S3Endpoint, dynamodb: DynamoDBEndpoint, place: tuple[str, str]) -> AsyncIterator[Ground]:
    async with opened(s3, dynamodb) as stores:
        yield Ground(s3, dynamodb, *place, stores)


async def crash_after(ground: Ground, name: str, step: int) -> str:
    """A table on which a commit of row 1 ended after this step, counted from 0."""
    uri = ground.create(name)
    store = ground.troubled(uri, Trouble().add("after", STEPS[step], CrashError()))
    with pytest.raises((CrashError, BaseExceptionGroup)):
        await ground.commit(uri, [1], store)
    return uri


async def test_what_a_crash_leaves_is_read_and_finished_by_us(ground: Ground) -> None:
    for step in range(len(STEPS)):
        name = f"ours-{step}"
        uri = await crash_after(ground, name, step)
        latest = await Table(ground.stores.open(uri)).latest()
        assert latest is not None
        assert latest.version == (1 if step == 0 else 2)
        assert ground.paths(name) == manifests_of(latest.version)
        assert len(ground.staged(name)) == (step in (0, 3)), step  # of no use to anyone, and harmless
        answer = await ground.commit(uri, [2])
        assert (answer.status, answer.version) == (Status.COMMITTED, latest.version + 1)
        assert ids_of(ground.open(uri)) == ([0, 2] if step == 0 else [0, 1, 2])


async def test_what_a_crash_leaves_is_read_and_finished_by_pylance(ground: Ground) -> None:
    """pylance also commits on top of it, and we on top of that."""
    for step in range(len(STEPS)):
        name = f"pylance-{step}"
        uri = await crash_after(ground, name, step)
        kept = [0] if step == 0 else [0, 1]
        table = ground.open(uri)
        assert (table.version, ids_of(table)) == (len(kept), kept)
        lance.write_dataset(rows([14]), uri, mode="append", storage_options=ground.options)
        answer = await ground.commit(uri, [2])
        assert (answer.status, answer.version) == (Status.COMMITTED, len(kept) + 2)
        assert ids_of(ground.open(uri)) == [*kept, 2, 14]
        assert ground.paths(name) == manifests_of(len(kept) + 2)


async def test_what_a_crash_leaves_is_read_and_finished_by_pylance_4(ground: Ground) -> None:
    uris = [await crash_after(ground, f"old-{step}", step) for step in range(len(STEPS))]
    version, seen = await anyio.to_thread.run_sync(
        run_in_4, _OPEN_AND_APPEND_IN_4, json.dumps(uris), json.dumps(ground.options)
    )
    assert version == "4.0.0"
    for step, uri in enumerate(uris):
        kept = [0] if step == 0 else [0, 1]
        assert seen[step] == [len(kept), kept, len(kept) + 1, [*kept, 44]]
        answer = await ground.commit(uri, [2])
        assert (answer.status, answer.version) == (Status.COMMITTED, len(kept) + 2)
        assert ids_of(ground.open(uri)) == [*kept, 2, 44]
        assert ground.paths(f"old-{step}") == manifests_of(len(kept) + 2)


async def test_a_lost_answer_to_any_request_neither_loses_nor_doubles(ground: Ground) -> None:
    uri = ground.create("lost")
    requests: list[tuple[str, dict[str, Any]]] = [
        ("s3", {"method": "PUT", "path": r"\.txn"}),
        ("s3", {"method": "PUT", "path": r"\.manifest-"}),
        ("s3", {"method": "HEAD", "path": r"\.manifest"}),
        ("dynamodb", {"target": "PutItem"}),
        ("s3", {"method": "PUT", "path": r"\.manifest(\?|$)"}),
        ("dynamodb", {"target": "PutItem", "first": 2}),
        ("s3", {"method": "DELETE"}),
        ("dynamodb", {"target": "Query"}),
        ("s3", {"method": "GET", "path": r"list-type"}),
    ]
    with FaultProxy(ground.s3.url) as objects, FaultProxy(ground.dynamodb.url) as entries:
        proxies = {"s3": objects, "dynamodb": entries}
        async with opened(ground.s3.through(objects.url), ground.dynamodb.through(entries.url)) as stores:
            for number, (service, request) in enumerate(requests, start=1):
                transaction = ground.stage(uri, [number])
                rule = proxies[service].fault(DROP_ANSWER, **request)
                answer = await commit(stores.open(uri), transaction, stores)
                assert rule.hits == 1, request
                assert (answer.status, answer.version) == (Status.COMMITTED, number + 1), request
                for proxy in proxies.values():
                    proxy.clear()
    assert ids_of(ground.open(uri)) == list(range(len(requests) + 1))
    assert ground.paths("lost") == manifests_of(len(requests) + 1)
    assert not ground.staged("lost")


async def test_a_manifest_that_pylance_4_threw_away_is_told_with_the_way_out(ground: Ground) -> None:
    """It takes the lost response to its commit for a conflict, deletes what it has committed, and never comes back."""
    uri = ground.create("thrown")
    with FaultProxy(ground.dynamodb.url) as proxy:
        proxy.fault(DROP_ANSWER, target="PutItem")
        options = ground.options | ground.dynamodb.through(proxy.url).storage_options()
        command = [old_pylance(), "-c", _WRITE_IN_4, uri, json.dumps(options)]
        async with await anyio.open_process(command, stdout=None, stderr=None) as writer:
            try:
                with anyio.fail_after(300):
                    while len(ground.paths("thrown")) < 2 or ground.staged("thrown"):  # noqa: ASYNC110  # another's doing
                        await anyio.sleep(0.1)
            finally:
                writer.kill()
    store = ground.stores.open(uri)
    with pytest.raises(CorruptTable, match=r"version 2 .*delete the entry of version 2") as raised:
        await Table(store).latest()
    assert raised.value.code == "manifest_lost"
    key = {"base_uri": {"S": "thrown.lance"}, "version": {"N": "2"}}
    ground.dynamodb.client().delete_item(TableName=ground.table, Key=key)
    assert (await ground.commit(uri, [1])).version == 2
    assert ids_of(ground.open(uri)) == [0, 1]


async def test_two_committers_and_pylance_at_once(ground: Ground) -> None:
    uri = ground.create("raced")
    answers: list[direct.DirectOutcome] = []

    async def write(first: int) -> None:
        async with opened(ground.s3, ground.dynamodb) as stores:
            for number in range(first, first + 4):
                transaction = await anyio.to_thread.run_sync(ground.stage, uri, [number])
                answers.append(await commit(stores.open(uri), transaction, stores))

    def write_with_pylance() -> None:
        for number in range(30, 33):
            lance.write_dataset(rows([number]), uri, mode="append", storage_options=ground.options)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write, 10)
        tasks.start_soon(write, 20)
        tasks.start_soon(anyio.to_thread.run_sync, write_with_pylance)
    assert {answer.status for answer in answers} == {Status.COMMITTED}
    assert ids_of(ground.open(uri)) == [0, *range(10, 14), *range(20, 24), *range(30, 33)]
    assert ground.paths("raced") == manifests_of(12)
    assert not ground.staged("raced")


async def test_we_create_what_pylance_opens_and_cleans_up(ground: Ground) -> None:
    uri = f"s3+ddb://{ground.bucket}/of ours ä.lance?ddbTableName={ground.table}"
    fragments = lance.fragment.write_fragments(
        rows([0]), uri, storage_options=ground.options, data_storage_version=_STORAGE
    )
    made = staging.create(fragments, rows([0]).schema, data_storage_version=_STORAGE)
    answer = await commit(ground.stores.open(uri), made.transaction, ground.stores)
    assert (answer.status, answer.version) == (Status.COMMITTED, 1)
    for number in (1, 2):
        await ground.commit(uri, [number])
    table = ground.open(uri)
    assert ids_of(table) == [0, 1, 2]
    assert ids_of(table.checkout_version(2)) == [0, 1]
    store = ground.stores.open(uri)
    assert isinstance(store, ExternalManifests)
    assert await store.conditions_hold()
    # The entries of cleaned-up versions stay. They are harmless.
    table.cleanup_old_versions(retain_versions=1)
    ours = Table(ground.stores.open(uri))
    assert await ours.versions() == [3]
    assert await ours.read(2) is None
    assert ground.paths("of ours ä") == manifests_of(3)
    assert (await commit(ours.store, ground.stage(uri, [3], read_version=3), ground.stores)).version == 4
    assert ids_of(ground.open(uri)) == [0, 1, 2, 3]


async def test_a_table_that_was_plain_s3_before_goes_on(ground: Ground) -> None:
    plain = f"s3://{ground.bucket}/moved.lance"
    for mode in ("create", "append"):
        lance.write_dataset(rows([0]), plain, mode=mode, storage_options=ground.options, data_storage_version=_STORAGE)
    uri = f"s3+ddb://{ground.bucket}/moved.lance?ddbTableName={ground.table}"
    assert (await ground.commit(uri, [1])).version == 3
    assert ids_of(ground.open(uri)) == [0, 0, 1]
    # pylance makes entries of old versions that it opens.
    assert ids_of(ground.open(uri).checkout_version(1)) == [0]
    assert (await ground.commit(uri, [2])).version == 4


async def test_requests_of_one_commit_are_few_and_measured(ground: Ground) -> None:
    uri = ground.create("measured")
    telemetry = Metrics(registry := CollectorRegistry()).of("events")
    async with opened(ground.s3, ground.dynamodb) as stores:
        transaction = ground.stage(uri, [1])
        await commit(stores.open(uri, telemetry), transaction, stores)
    made = {
        (family.name, sample.labels["operation"]): sample.value
        for family in registry.collect()
        if family.name.endswith("store_requests")
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value
    }
    assert made == {
        ("committerd_store_requests", "list"): 1,
        ("committerd_store_requests", "get_tail"): 2,  # the latest manifest, and the data file
        ("committerd_store_requests", "put"): 2,  # transaction and staged manifest
        ("committerd_store_requests", "head"): 1,
        ("committerd_store_requests", "copy"): 1,
        ("committerd_store_requests", "delete"): 1,
        ("committerd_manifest_store_requests", "latest"): 1,
        ("committerd_manifest_store_requests", "put_if_absent"): 1,
        ("committerd_manifest_store_requests", "replace"): 1,
    }
