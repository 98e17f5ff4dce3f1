"""The manifest store in DynamoDB: its items, the table that they belong to, and the meaning of each failure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from committerd.errors import CorruptTable, PutUnknown, SettingsError, StoreUnavailable
from committerd.settings.s3 import S3Settings
from committerd.stores.dynamodb import DynamoStore, dynamo_place, dynamodb_client
from committerd.stores.port import Created, ManifestEntry
from committerd.stores.retries import Fault as Failed
from harness.dynamodb import DynamoDBEndpoint
from harness.fault_proxy import DROP_ANSWER, DROP_REQUEST, HALF_BODY, Fault, FaultProxy, answer

BASE = "some/table.lance"
FIRST = ManifestEntry(version=1, key="_versions/18446744073709551614.manifest", size=11)


class TestPlace:
    def test_is_bucket_path_and_table(self) -> None:
        place = dynamo_place("s3+ddb://bucket/some//a%20table.lance/?ddbTableName=manifests")
        assert place is not None
        assert (place.objects.bucket, place.base_uri, place.table) == ("bucket", "some/a table.lance", "manifests")
        assert place.objects.prefix == "some/a table.lance/"

    def test_of_another_scheme_is_none(self) -> None:
        for uri in ("s3://bucket/t?ddbTableName=x", "/local", "file:///t", "s3+ddb:bucket"):
            assert dynamo_place(uri) is None

    @pytest.mark.parametrize(
        "uri",
        [
            "s3+ddb://b/t",
            "s3+ddb://b/t?",
            "s3+ddb://b/t?ddbTableName=",
            "s3+ddb://b/t?ddbtablename=x",
            "s3+ddb://b/t?ddbTableName=x&region=y",
            "s3+ddb://b/t?ddbTableName=x&ddbTableName=y",
            "s3+ddb://b?ddbTableName=x",
            "s3+ddb://b/?ddbTableName=x",
            "s3+ddb:///t?ddbTableName=x",
        ],
    )
    def test_of_less_or_more_is_refused_with_the_form(self, uri: str) -> None:
        with pytest.raises(SettingsError, match="s3"):
            dynamo_place(uri)


@pytest.fixture(scope="module")
def proxy(dynamodb: DynamoDBEndpoint) -> Iterator[FaultProxy]:
    with FaultProxy(dynamodb.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def table(dynamodb: DynamoDBEndpoint) -> str:
    return dynamodb.make_table()


class Opened:
    """A manifest store of its own Lance table, and the faults that occurred."""

    def __init__(self, dynamodb: DynamoDBEndpoint, url: str) -> None:
        self.faults: list[Failed] = []
        settings = S3Settings.model_validate(
            {
                "region": dynamodb.region,
                "access_key_id": dynamodb.access_key,
                "secret_access_key": dynamodb.secret_key,
                "attempts": 2,
            }
        )
        self.client = dynamodb_client(settings, endpoint_url=url)

    def store(self, table: str, base_uri: str = BASE) -> DynamoStore:
        return DynamoStore(self.client, table=table, base_uri=base_uri, failed=self.faults.append)


@pytest.fixture
async def opened(dynamodb: DynamoDBEndpoint, proxy: FaultProxy) -> AsyncIterator[Opened]:
    opened = Opened(dynamodb, proxy.url)
    yield opened
    proxy.clear()
    await opened.client.aclose()


@pytest.fixture
def store(opened: Opened, table: str, request: pytest.FixtureRequest) -> DynamoStore:
    return opened.store(table, f"{request.node.name}/t.lance")


pytestmark = pytest.mark.dynamodb


async def test_items_are_those_of_lance(dynamodb: DynamoDBEndpoint, opened: Opened) -> None:
    table = dynamodb.make_table()
    store = opened.store(table)
    await store.put_if_absent(FIRST)
    assert dynamodb.items(table) == [
        {
            "base_uri": BASE,
            "version": "1",
            "path": f"{BASE}/_versions/18446744073709551614.manifest",
            "committer": "lancedb",
            "size": "11",
        }
    ]


async def test_what_pylance_4_adds_is_no_obstacle(dynamodb: DynamoDBEndpoint, opened: Opened, table: str) -> None:
    item = {
        "base_uri": {"S": "four/t.lance"},
        "version": {"N": "7"},
        "path": {"S": "four/t.lance/_versions/7.manifest"},
        "committer": {"S": "lancedb"},
        "e_tag": {"S": '"abc"'},
    }
    dynamodb.client().put_item(TableName=table, Item=item)
    assert await opened.store(table, "four/t.lance").latest() == ManifestEntry(version=7, key="_versions/7.manifest")
    assert await opened.store(table, "fou").latest() is None


@pytest.mark.parametrize("broken", [{"path": {"N": "1"}}, {"size": {"S": "x"}}, {"size": {"N": "1.5"}}])
async def test_an_item_that_is_none_of_lances_is_refused(
    dynamodb: DynamoDBEndpoint, opened: Opened, broken: dict[str, dict[str, str]]
) -> None:
    table = dynamodb.make_table()
    item = {"base_uri": {"S": BASE}, "version": {"N": "1"}, "path": {"S": f"{BASE}/_versions/1.manifest"}, **broken}
    dynamodb.client().put_item(TableName=table, Item=item)
    with pytest.raises(CorruptTable, match="not one of Lance's") as raised:
        await opened.store(table).latest()
    assert raised.value.code == "manifest_entry"


async def test_a_table_that_is_not_there_is_told_with_the_way_to_make_it(opened: Opened) -> None:
    with pytest.raises(StoreUnavailable, match="aws dynamodb create-table --table-name missing"):
        await opened.store("missing").latest()


async def test_a_table_with_another_key_is_refused(dynamodb: DynamoDBEndpoint, opened: Opened) -> None:
    dynamodb.client().create_table(
        TableName="locks",
        KeySchema=[{"AttributeName": "base_uri", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "base_uri", "AttributeType": "N"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(SettingsError, match=r"its key is base_uri \(HASH, type N\); Lance needs base_uri \(HASH, type"):
        await opened.store("locks").put_if_absent(FIRST)


async def test_the_table_is_described_once(opened: Opened, store: DynamoStore, proxy: FaultProxy) -> None:
    await store.put_if_absent(FIRST)
    before = len(proxy.seen)
    await store.latest()
    await store.get(1)
    assert [seen.target for seen in proxy.seen[before:]] == ["Query", "GetItem"]


@pytest.mark.parametrize("fault", [DROP_ANSWER, answer(500, applied=True), HALF_BODY])
async def test_a_put_whose_answer_is_lost_is_unknown_and_sent_once(
    store: DynamoStore, proxy: FaultProxy, fault: Fault
) -> None:
    await store.latest()
    before = len(proxy.seen)
    proxy.fault(fault, target="PutItem", times=None)
    with pytest.raises(PutUnknown):
        await store.put_if_absent(FIRST)
    assert [seen.target for seen in proxy.seen[before:]] == ["PutItem"]
    proxy.clear()
    assert await store.get(1) == FIRST


@pytest.mark.parametrize("fault", [DROP_REQUEST, answer(500)])
async def test_a_put_that_never_arrived_is_unknown_too(store: DynamoStore, proxy: FaultProxy, fault: Fault) -> None:
    proxy.fault(fault, target="PutItem")
    with pytest.raises(PutUnknown):
        await store.put_if_absent(FIRST)
    assert await store.get(1) is None
    assert await store.put_if_absent(FIRST) == Created()


async def test_a_throttled_put_was_not_applied_and_is_sent_once(
    opened: Opened, store: DynamoStore, proxy: FaultProxy
) -> None:
    await store.latest()
    before = len(proxy.seen)
    proxy.fault(answer(400), target="PutItem", times=None)
    with pytest.raises(StoreUnavailable, match="ProvisionedThroughputExceededException"):
        await store.put_if_absent(FIRST)
    assert [seen.target for seen in proxy.seen[before:]] == ["PutItem"]
    assert opened.faults == [Failed.THROTTLED]
    proxy.clear()
    assert await store.get(1) is None
    assert await store.put_if_absent(FIRST) == Created()


@pytest.mark.parametrize("fault", [DROP_ANSWER, DROP_REQUEST, HALF_BODY, answer(400), answer(500), answer(503)])
async def test_all_else_is_tried_again(store: DynamoStore, proxy: FaultProxy, fault: Fault) -> None:
    await store.put_if_absent(FIRST)
    for target in ("GetItem", "Query", "PutItem"):
        proxy.fault(fault, target=target)
    assert await store.get(1) == FIRST
    assert await store.latest() == FIRST
    assert await store.replace(FIRST)


async def test_what_fails_again_and_again_is_unavailable(store: DynamoStore, proxy: FaultProxy) -> None:
    await store.put_if_absent(FIRST)
    proxy.fault(answer(500), times=None)
    for attempt in (store.get(1), store.latest(), store.replace(FIRST)):
        with pytest.raises(StoreUnavailable, match="500 InternalServerError"):
            await attempt


async def test_an_endpoint_where_nobody_listens_is_unavailable(dynamodb: DynamoDBEndpoint) -> None:
    opened = Opened(dynamodb, "http://127.0.0.1:1")
    with pytest.raises(StoreUnavailable):
        await opened.store("t").put_if_absent(FIRST)
    assert opened.faults == [Failed.CONNECTION] * 2
    await opened.client.aclose()


async def test_errors_hold_no_credentials(dynamodb: DynamoDBEndpoint, store: DynamoStore, proxy: FaultProxy) -> None:
    proxy.fault(answer(500), times=None)
    with pytest.raises(StoreUnavailable) as raised:
        await store.latest()
    assert dynamodb.secret_key not in str(raised.value)
    assert dynamodb.access_key not in str(raised.value)
