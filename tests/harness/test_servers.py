"""The servers respond as the programs that use them expect, and keep their address and files over a crash."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from harness import PartMissingError
from harness.dynamodb import DynamoDBEndpoint
from harness.s3 import S3Endpoint, Versitygw, s3_server
from harness.toxiproxy import Toxiproxy


@pytest.mark.s3
@pytest.mark.parametrize("which", ["s3", "minio"])
def test_an_s3_server_refuses_a_second_writer(which: str, request: pytest.FixtureRequest) -> None:
    endpoint: S3Endpoint = request.getfixturevalue(which)
    bucket, client = endpoint.make_bucket(), endpoint.client()
    client.put_object(Bucket=bucket, Key="a/b", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="a/b", Body=b"second", IfNoneMatch="*")
    assert client.get_object(Bucket=bucket, Key="a/b")["Body"].read() == b"first"
    assert endpoint.secret_key not in repr(endpoint)
    endpoint.remove_bucket(bucket)
    assert bucket not in [found["Name"] for found in client.list_buckets()["Buckets"]]


@pytest.mark.s3
def test_a_server_keeps_address_and_files_over_a_crash() -> None:
    server = Versitygw()
    try:
        server.start()
    except PartMissingError as error:
        server.close()
        pytest.skip(str(error))
    with contextlib.closing(server):
        endpoint = server.endpoint
        bucket = endpoint.make_bucket()
        endpoint.client().put_object(Bucket=bucket, Key="kept", Body=b"bytes")
        server.kill()
        with pytest.raises(BotoCoreError):
            endpoint.client().list_buckets()
        server.start()
        assert server.endpoint == endpoint
        assert endpoint.client().get_object(Bucket=bucket, Key="kept")["Body"].read() == b"bytes"
    assert not server.folder.exists()


@pytest.mark.s3
@pytest.mark.dynamodb
@pytest.mark.pylance
def test_pylance_commits_through_dynamodb(s3: S3Endpoint, dynamodb: DynamoDBEndpoint) -> None:
    bucket, table = s3.make_bucket(), dynamodb.make_table()
    uri = f"s3+ddb://{bucket}/t.lance?ddbTableName={table}"
    options = s3.storage_options() | dynamodb.storage_options()
    for _ in range(2):
        lance.write_dataset(pa.table({"a": [1]}), uri, mode="append", storage_options=options)
    assert [item["version"] for item in dynamodb.items(table)] == ["1", "2"]
    assert {item["base_uri"] for item in dynamodb.items(table)} == {"t.lance"}  # without the bucket


@pytest.mark.s3
def test_the_network_delays_and_loses(s3: S3Endpoint, toxiproxy: Toxiproxy) -> None:
    bucket = s3.make_bucket()
    proxy = toxiproxy.proxy(s3.url)
    client = s3.through(proxy.url).client()
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    slow = proxy.add("latency", latency=300)
    began = time.monotonic()
    client.head_object(Bucket=bucket, Key="k")
    assert time.monotonic() - began > 0.29
    proxy.remove(slow)
    proxy.add("limit_data", bytes=1)
    with pytest.raises(BotoCoreError):
        client.delete_object(Bucket=bucket, Key="k")
    assert "Contents" not in s3.client().list_objects_v2(Bucket=bucket)
    proxy.enable(False)
    with pytest.raises(BotoCoreError):
        client.head_object(Bucket=bucket, Key="k")
    proxy.close()


def test_a_missing_program_is_named_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("COMMITTERD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("COMMITTERD_TEST_S3_ENDPOINT", raising=False)
    with pytest.raises(PartMissingError, match=r"versitygw v1\.8\.0 .* no `go`: install Go"), s3_server():
        pass
    assert not (tmp_path / "cache").exists()


def test_a_server_of_somebody_else_needs_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITTERD_TEST_S3_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "us")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(PartMissingError, match="AWS_SECRET_ACCESS_KEY is not"), s3_server():
        pass
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    with s3_server() as endpoint:
        assert endpoint == S3Endpoint("http://127.0.0.1:9", "us", "secret", "eu-central-1")
