"""The fault proxy injects the chosen fault into the chosen request, and leaves the others alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from harness.dynamodb import DynamoDBEndpoint
from harness.fault_proxy import DROP_ANSWER, DROP_REQUEST, HALF_BODY, FaultProxy, Rule, answer
from harness.s3 import S3Endpoint

pytestmark = pytest.mark.s3


class Store:
    """A bucket, directly and through the proxy."""

    def __init__(self, endpoint: S3Endpoint, proxy: FaultProxy) -> None:
        self.bucket = endpoint.make_bucket()
        self._direct: Any = endpoint.client()
        self._proxied: Any = endpoint.through(proxy.url).client()

    def put(self, key: str, body: bytes = b"bytes") -> Any:
        return self._proxied.put_object(Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*")

    def get(self, key: str) -> bytes:
        return bytes(self._proxied.get_object(Bucket=self.bucket, Key=key)["Body"].read())

    def head(self, key: str) -> Any:
        return self._proxied.head_object(Bucket=self.bucket, Key=key)

    def keys(self) -> list[str]:
        """The keys in the bucket, read without the proxy."""
        return [found["Key"] for found in self._direct.list_objects_v2(Bucket=self.bucket).get("Contents", ())]


@pytest.fixture
def proxy(s3: S3Endpoint) -> Iterator[FaultProxy]:
    with FaultProxy(s3.url) as made:
        yield made


@pytest.fixture
def store(s3: S3Endpoint, proxy: FaultProxy) -> Store:
    return Store(s3, proxy)


def test_what_no_rule_meets_passes_as_it_is(store: Store, proxy: FaultProxy) -> None:
    body = bytes(range(256)) * 4096
    key = "a b/ü+%/x=1&y"  # the signed path is the path as it was sent
    store.put(key, body)
    assert store.get(key) == body
    assert store.head(key)["ContentLength"] == len(body)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        store.put(key)
    assert [(seen.method, seen.forwarded, seen.fault) for seen in proxy.seen] == [
        ("PUT", 200, None),
        ("GET", 200, None),
        ("HEAD", 200, None),
        ("PUT", 412, None),
    ]


def test_a_request_is_lost_before_or_after_it_was_applied(store: Store, proxy: FaultProxy) -> None:
    proxy.fault(DROP_REQUEST, method="PUT")
    with pytest.raises(BotoCoreError):
        store.put("before")
    assert store.keys() == []
    proxy.fault(DROP_ANSWER, method="PUT")
    with pytest.raises(BotoCoreError):
        store.put("after")
    assert store.keys() == ["after"]
    store.put("good")
    assert [(seen.forwarded, seen.fault) for seen in proxy.seen] == [
        (None, "drop_request"),
        (200, "drop_answer"),
        (200, None),
    ]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (409, "ConditionalRequestConflict"),
        (412, "PreconditionFailed"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "SlowDown"),
    ],
)
@pytest.mark.parametrize("applied", [False, True])
def test_a_status_is_answered_once(store: Store, proxy: FaultProxy, status: int, code: str, applied: bool) -> None:
    proxy.fault(answer(status, applied=applied, retry_after=7), path="k$")
    with pytest.raises(ClientError, match=code) as caught:
        store.put("k")
    said = caught.value.response["ResponseMetadata"]
    assert said["HTTPStatusCode"] == status
    assert said["HTTPHeaders"]["retry-after"] == "7"
    assert store.keys() == (["k"] if applied else [])
    if applied:
        store.head("k")
    else:
        store.put("k")


def test_half_a_body_comes_with_a_good_status(store: Store, proxy: FaultProxy) -> None:
    store.put("k", b"x" * 10_000)
    proxy.fault(HALF_BODY, method="GET")
    with pytest.raises(BotoCoreError):
        store.get("k")
    assert len(store.get("k")) == 10_000


def test_the_nth_is_met_and_so_often_as_was_said(store: Store, proxy: FaultProxy) -> None:
    rule = proxy.fault(answer(500), method="PUT", path="/wanted", first=2, times=2)
    good = []
    for number in range(5):
        store.put(f"other-{number}")
        try:
            store.put(f"wanted-{number}")
            good.append(number)
        except ClientError:
            pass
    assert good == [0, 3, 4]
    assert rule.hits == 2


def test_chances_are_those_of_the_seed() -> None:
    def drawn(seed: int) -> list[bool]:
        rng, rule = random.Random(seed), Rule(DROP_ANSWER, times=None, chance=0.5)
        return [rule.takes(rng) for _ in range(100)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 30 < sum(drawn(1)) < 70


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("drop", [False, True])
def test_a_request_is_held_until_it_is_released(store: Store, proxy: FaultProxy, applied: bool, drop: bool) -> None:
    held = proxy.hold(method="PUT", applied=applied)
    with ThreadPoolExecutor() as pool:
        putting = pool.submit(store.put, "k")
        held.wait()
        assert store.keys() == (["k"] if applied else [])
        with pytest.raises(ClientError):
            store.head("others pass")
        assert not putting.done()
        held.release(drop=drop)
        if drop:
            with pytest.raises(BotoCoreError):
                putting.result(60)
        else:
            putting.result(60)
    assert store.keys() == ([] if drop and not applied else ["k"])


def test_what_is_held_at_the_end_does_not_keep_the_proxy(s3: S3Endpoint) -> None:
    with FaultProxy(s3.url) as proxy:
        store = Store(s3, proxy)
        held = proxy.hold(method="PUT")

        def put() -> None:
            with pytest.raises(BotoCoreError):
                store.put("k")

        putting = threading.Thread(target=put)
        putting.start()
        held.wait()
    putting.join(60)
    assert not putting.is_alive()
    assert store.keys() == []


@pytest.mark.dynamodb
def test_operations_of_dynamodb_are_told_apart(dynamodb: DynamoDBEndpoint) -> None:
    table = dynamodb.make_table()
    item = {"base_uri": {"S": "t"}, "version": {"N": "1"}}
    with FaultProxy(dynamodb.url) as proxy:
        client = dynamodb.through(proxy.url).client()
        proxy.fault(answer(500, applied=True), target="PutItem", body="attribute_exists")
        client.put_item(TableName=table, Item=item, ConditionExpression="attribute_not_exists(base_uri)")
        with pytest.raises(ClientError, match="InternalServerError"):
            client.put_item(
                TableName=table, Item=item | {"path": {"S": "p"}}, ConditionExpression="attribute_exists(base_uri)"
            )
        proxy.fault(answer(400), target="GetItem")
        with pytest.raises(ClientError, match="ProvisionedThroughputExceeded"):
            client.get_item(TableName=table, Key=item)
        assert client.get_item(TableName=table, Key=item)["Item"]["path"] == {"S": "p"}
        assert [seen.target for seen in proxy.seen] == ["PutItem", "PutItem", "GetItem", "GetItem"]
