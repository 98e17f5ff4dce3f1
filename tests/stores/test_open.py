"""From a URI and settings to a store; and copies from one store to another."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from committerd.__main__ import cli
from committerd.commands.system import stores_of
from committerd.errors import InvalidRequest, SettingsError, StoreUnavailable
from committerd.settings.load import load_storage_settings
from committerd.stores.external_manifests import ExternalManifests
from committerd.table.fetching import Fetcher
from committerd.table.places import located
from committerd.table.versions import Table
from committerd.telemetry import Metrics
from committerd_common.messages import BasePath, Transaction
from harness.s3 import S3Endpoint
from tests.stores.fake_s3 import Answer, FakeS3


@pytest.fixture(autouse=True)
def _no_settings_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMITTERD_CONFIG", raising=False)


def use(monkeypatch: pytest.MonkeyPatch, *, url: str, access_key: str, secret_key: str) -> None:
    monkeypatch.setenv("COMMITTERD_S3__ENDPOINT_URL", url)
    monkeypatch.setenv("COMMITTERD_S3__ADDRESSING_STYLE", "path")
    monkeypatch.setenv("COMMITTERD_S3__ACCESS_KEY_ID", access_key)
    monkeypatch.setenv("COMMITTERD_S3__SECRET_ACCESS_KEY", secret_key)


async def test_a_uri_opens_its_store_and_all_share_a_client_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeS3() as server:
        use(monkeypatch, url=server.url, access_key="a", secret_key="b")
        telemetry = Metrics(registry := CollectorRegistry()).of("events")
        async with stores_of(load_storage_settings(), telemetry=telemetry.process) as stores:
            table, base = stores.open("s3a://bucket/t.lance/", telemetry), stores.open
            assert table.uri == "s3://bucket/t.lance"
            await table.put("o", b"1")
            assert await base("s3://bucket/t.lance").get("o") == b"1"
            server.script += [Answer(status=503, code="SlowDown")] * 2
            assert await table.head("o") == 1
    counted = {"service": "s3", "fault": "throttled"}
    assert registry.get_sample_value("committerd_store_failed_requests_total", counted) == 2
    asked = {"dataset": "events", "operation": "head", "status": "ok"}
    assert registry.get_sample_value("committerd_store_requests_total", asked) == 1
    assert stores.open("/data/t").uri == "/data/t"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("oss://b/t", "scheme oss:// are not served.*s3://bucket/path.*az://container/path.*gs://bucket/path"),
        ("abfs://b/t", "abfss://container@account"),
        ("memory://t", "scheme memory:// are not served"),
        ("s3://lake-access-use1-az4--xa-s3/t", "access point of a directory bucket .*Name the bucket itself"),
        ("s3+ddb://lake--use1-az4--x-s3/t?ddbTableName=m", "directory bucket .*as s3://lake--use1-az4--x-s3/t"),
    ],
)
def test_what_is_not_served_is_told_with_what_is(uri: str, message: str) -> None:
    stores = stores_of(load_storage_settings())
    with pytest.raises(SettingsError, match=message):
        stores.open(uri)


def test_a_base_that_no_store_serves_is_the_records_fault_and_ends_nothing() -> None:
    stores = stores_of(load_storage_settings())
    fetch = Fetcher(Table(stores.open("/data/t")), stores.open)
    with pytest.raises(InvalidRequest, match="scheme oss://") as caught:
        fetch.open(located("data/x.lance", 7, [BasePath(id=7, path="oss://b/t")]))
    assert caught.value.code == "base_unreadable"


def test_settings_of_other_groups_are_not_needed_and_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "committerd.toml"
    file.write_text('[dataset]\nname = "has space"\n[s3]\nregion = "eu-central-1"\nattempts = 2\n')
    monkeypatch.setenv("COMMITTERD_CONFIG", str(file))
    monkeypatch.setenv("COMMITTERD_S3__ATTEMPTS", "7")
    storage = load_storage_settings()
    assert (storage.s3.region, storage.s3.attempts) == ("eu-central-1", 7)
    monkeypatch.setenv("COMMITTERD_S3__ENDPOINT_URL", "http://me:hunter2@host")
    with pytest.raises(SettingsError, match="COMMITTERD_S3__ENDPOINT_URL") as caught:
        load_storage_settings()
    assert "hunter2" not in str(caught.value)


def staged(folder: Path, transaction: Transaction) -> str:
    transaction.uuid = str(uuid.uuid4())
    file = folder / f"{transaction.uuid}.pb"
    file.write_bytes(transaction.SerializeToString())
    return str(file)


@pytest.mark.s3
@pytest.mark.pylance
def test_a_shallow_clone_into_another_bucket_and_a_delete_without_kafka(
    s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, url=s3.url, access_key=s3.access_key, secret_key=s3.secret_key)
    source, clone = (f"s3://{s3.make_bucket()}/{name}.lance" for name in ("source", "clone"))
    lance.write_dataset(pa.table({"id": [1, 2, 3]}), source, storage_options=s3.storage_options())
    asked = Transaction(read_version=1)
    asked.clone.is_shallow, asked.clone.ref_path, asked.clone.ref_version = True, source, 1

    done = CliRunner().invoke(cli, ["commit", clone, staged(tmp_path, asked), "--verify-files", "--json"])
    assert json.loads(done.stdout)["outcome"] == "committed", done.output
    cloned = lance.dataset(clone, storage_options=s3.storage_options())
    assert sorted(cloned.to_table()["id"].to_pylist()) == [1, 2, 3]

    emptied = Transaction(read_version=1)
    emptied.delete.deleted_fragment_ids.append(0)
    emptied.delete.predicate = "true"
    done = CliRunner().invoke(cli, ["commit", clone, staged(tmp_path, emptied), "--json"])
    assert json.loads(done.stdout) == {"outcome": "committed", "version": 2, "reason": "", "message": ""}
    assert lance.dataset(clone, storage_options=s3.storage_options()).count_rows() == 0
    assert lance.dataset(source, storage_options=s3.storage_options()).count_rows() == 3


def test_a_commit_to_a_bucket_that_is_not_there_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with FakeS3() as server:
        use(monkeypatch, url=server.url, access_key="a", secret_key="b")
        asked = Transaction(read_version=1)
        asked.append.SetInParent()
        done = CliRunner().invoke(cli, ["commit", "s3://other/t", staged(tmp_path, asked)])
    assert isinstance(done.exception, StoreUnavailable)
    assert "create the bucket" in str(done.exception)


@pytest.mark.parametrize("measured", [True, False])
async def test_the_probe_sees_that_manifests_are_in_dynamodb(measured: bool) -> None:
    async with stores_of(load_storage_settings()) as stores:
        telemetry = Metrics(CollectorRegistry()).of("events") if measured else None
        store = stores.open("s3+ddb://bucket/t.lance?ddbTableName=manifests", telemetry)
    assert isinstance(store, ExternalManifests)
