"""The probe detects a store that would lose commits, and leaves nothing behind."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from committerd.__main__ import cli
from committerd.errors import PutUnknown, RefusedToRun, SettingsError, StoreUnavailable
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.s3 import S3Settings
from committerd.stores.local import LocalStore
from committerd.stores.open import Stores
from committerd.stores.port import Content, Created, Exists, ObjectStore, Tail, in_one_piece
from committerd.stores.probing import Check, Prover, probe
from committerd.stores.s3 import S3Store
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from harness.s3 import S3Endpoint
from tests.simulation.store import Bucket, FakeStore
from tests.stores.fake_s3 import Answer, FakeS3
from tests.stores.s3_stores import opened, settings_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CHECKS = ["put_if_absent", "read", "list", "copy", "delete"]


async def tried(store: ObjectStore) -> dict[str, Check]:
    return {check.name: check for check in await probe(store, now=NOW, new_uuid=uuid.uuid4)}


def prover_of(store: ObjectStore) -> Prover:
    return Prover(store, wall_clock=lambda: NOW, new_uuid=uuid.uuid4)


def on(server: FakeS3) -> AbstractAsyncContextManager[S3Store]:
    return opened(server.settings(attempts=1), "bucket", "t")


async def test_a_sound_store_passes_and_nothing_is_left(server: FakeS3, tmp_path: Path) -> None:
    bucket = Bucket()
    async with on(server) as remote:
        for store in (FakeStore(bucket), LocalStore(tmp_path / "t"), remote):
            found = await tried(store)
            assert list(found) == CHECKS
            assert all(check.good for check in found.values()), found
    assert not bucket.objects
    assert not server.objects
    assert not list((tmp_path / "t/_versions").iterdir())
    # The contenders for one key were in flight at the same time, each on its own connection.
    assert sum("~probe" in request for request in server.requests) > 40


async def test_the_tables_of_a_bucket_are_proved_once_and_a_failure_of_one_proves_none(server: FakeS3) -> None:
    settings = server.settings(attempts=1)
    stores = Stores(settings, DynamoDBSettings())
    uris = [f"s3://bucket/t{number}" for number in range(20)]
    async with stores:
        provers = [
            Prover(stores.open(uri), wall_clock=lambda: NOW, new_uuid=uuid.uuid4, neighbours=stores.neighbours(uri))
            for uri in uris
        ]
        server.honest = False
        with pytest.raises(RefusedToRun, match="s3://bucket/t0"):
            await provers[0].prove()
        server.honest = True
        server.requests.clear()
        async with anyio.create_task_group() as tasks:
            for one in provers:
                tasks.start_soon(one.prove)
        probed = {uri for uri in uris if any(f"{uri[5:]}/_versions" in request for request in server.requests)}
        assert len(probed) == 1
        assert stores.neighbours("s3://bucket/t30").is_proved
        assert not stores.neighbours("s3://another/t0").is_proved
        assert not stores.neighbours("s3+ddb://bucket/t0?ddbTableName=t").is_proved


def test_each_folder_on_a_file_system_is_by_itself(tmp_path: Path) -> None:
    stores = Stores(S3Settings(), DynamoDBSettings())
    assert stores.neighbours(f"{tmp_path}/a") is not stores.neighbours(f"{tmp_path}/b")
    assert stores.neighbours(f"{tmp_path}/a") is stores.neighbours(f"{tmp_path}/a")


async def test_a_server_that_takes_no_notice_of_conditions_is_refused_with_the_reason(server: FakeS3) -> None:
    server.honest = False
    async with on(server) as store:
        with pytest.raises(RefusedToRun, match=r"4 of 4 writers.*its rows would be lost.*If-None-Match") as caught:
            await prover_of(store).prove()
    assert caught.value.code == "store_unsafe"
    assert not server.objects


class Wrong(FakeStore):
    """Sound except for one fault."""

    async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
        answer = await super().put_if_absent(key, body)
        if self.how == "tells the loser's bytes" and answer == Exists():
            await self.put(key, in_one_piece(body))
        if self.how == "tells nobody":
            return Exists()
        return answer

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return await super().get_range(key, start, end + (self.how == "ranges end late"))

    async def get_tail(self, key: str, size: int) -> Tail | None:
        tail = await super().get_tail(key, size)
        return tail and Tail(body=tail.body, size=len(tail.body) if self.how == "tails lie" else tail.size)

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        if self.how == "lists as people would":
            keys = [key for key in await super().list(prefix) if key > start_after]
            return sorted(keys, key=str.lower)[:limit]
        if self.how == "lists from the start":
            start_after = start_after and "_versions/~"
        return await super().list(prefix, start_after=start_after, limit=limit)

    async def copy(self, source: str, target: str) -> bool:
        return True if self.how == "copies nothing" else await super().copy(source, target)

    async def delete(self, key: str) -> None:
        if self.how != "deletes nothing":
            await super().delete(key)

    how = ""


@pytest.mark.parametrize(
    ("how", "check", "fault"),
    [
        ("tells the loser's bytes", "put_if_absent", "contains other bytes"),
        ("tells nobody", "put_if_absent", "contains other bytes"),
        ("ranges end late", "read", "a range is"),
        ("tails lie", "read", "the end of an object"),
        ("lists as people would", "list", "a listing"),
        ("lists from the start", "list", "a listing"),
        ("copies nothing", "copy", "a copied object"),
        ("deletes nothing", "delete", "a deleted object"),
    ],
)
async def test_whatever_a_store_does_wrong_is_named(how: str, check: str, fault: str) -> None:
    store = Wrong(Bucket())
    store.how = how
    found = await tried(store)
    assert fault in found[check].fault
    if how not in ("deletes nothing", "tells nobody"):  # which also shows elsewhere
        assert [name for name in CHECKS if not found[name].good] == [check]


async def test_a_file_system_without_atomic_creation_is_refused() -> None:
    class Plain(FakeStore):
        async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
            raise SettingsError("neither hard links nor", code="no_atomic_create")

    with pytest.raises(RefusedToRun, match="neither hard links nor"):
        await prover_of(Plain(Bucket())).prove()


class Forgetful(FakeStore):
    """Loses the responses of the first puts."""

    lost = 0
    lands: Callable[[int], bool] = staticmethod(lambda _: True)

    async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
        self.lost -= 1
        if self.lost < 0:
            return await super().put_if_absent(key, body)
        if self.lands(self.lost):
            await super().put_if_absent(key, body)
        raise PutUnknown("the answer was lost")


@pytest.mark.parametrize("lands", [lambda _: True, lambda _: False, lambda number: number % 3 == 0])
async def test_lost_answers_prove_nothing_against_a_store(lands: Callable[[int], bool]) -> None:
    passed = 0
    for lost in range(16):
        store = Forgetful(Bucket())
        store.lost, store.lands = lost, lands
        # If too many are lost, it can't decide: it reports that, and not that the store is unsafe.
        with suppress(StoreUnavailable):
            assert all(check.good for check in (await tried(store)).values())
            passed += 1
    assert passed >= 8


async def test_a_store_that_answers_no_put_is_not_proved() -> None:
    store = Forgetful(Bucket())
    store.lost, store.lands = 1000, lambda _: False
    with pytest.raises(StoreUnavailable, match=r"replied to none|does not reply"):
        await tried(store)


async def test_what_a_killed_probe_left_is_deleted_after_an_hour() -> None:
    bucket, seconds = Bucket(), int(NOW.timestamp())
    old, young = f"_versions/~probe-{seconds - 4000}-x-race-0", f"_versions/~probe-{seconds - 60}-x-race-0"
    for key in (old, young, "_versions/1.manifest", "_versions/~probe-what"):
        bucket.put(key, b"")
    await tried(FakeStore(bucket))
    assert sorted(bucket.objects) == ["_versions/1.manifest", young, "_versions/~probe-what"]


async def test_a_store_is_proved_once(server: FakeS3) -> None:
    async with on(server) as store:
        prover = prover_of(store)
        server.script.append(Answer(status=403, code="AccessDenied"))
        with pytest.raises(StoreUnavailable, match="AccessDenied"):
            await prover.prove()
        await prover.prove()
        asked = len(server.requests)
        await prover.prove()
        assert len(server.requests) == asked


def test_the_command_tells_good_from_bad_without_kafka_or_a_dataset(
    server: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMITTERD_S3__ENDPOINT_URL", server.url)
    monkeypatch.setenv("COMMITTERD_S3__ADDRESSING_STYLE", "path")
    monkeypatch.setenv("COMMITTERD_S3__ACCESS_KEY_ID", "AKIAFAKE")
    monkeypatch.setenv("COMMITTERD_S3__SECRET_ACCESS_KEY", "a-secret-of-ours")

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, ["probe", *words])

    good = run("s3://bucket/t")
    assert good.exit_code == 0, good.output
    assert "s3://bucket/t keeps a table safe" in good.output
    server.honest = False
    bad = run("s3a://bucket/t", "--json")
    assert bad.exit_code == 1
    told = json.loads(bad.stdout)
    assert (told["good"], told["uri"]) == (False, "s3://bucket/t")
    assert [check["name"] for check in told["checks"] if not check["good"]] == ["put_if_absent"]
    missing = run("s3://other/t").exception
    assert isinstance(missing, StoreUnavailable)
    assert "create the bucket" in str(missing)
    other = run("oss://bucket/t").exception
    assert isinstance(other, SettingsError)
    assert "oss:// are not served" in str(other)


@pytest.mark.s3
def test_the_command_says_that_a_bucket_keeps_what_is_deleted(
    minio: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = minio.make_bucket()
    monkeypatch.setenv("COMMITTERD_S3__ENDPOINT_URL", minio.url)
    monkeypatch.setenv("COMMITTERD_S3__ACCESS_KEY_ID", minio.access_key)
    monkeypatch.setenv("COMMITTERD_S3__SECRET_ACCESS_KEY", minio.secret_key)

    def said() -> str:
        ran = CliRunner().invoke(cli, ["probe", f"s3://{bucket}/t"])
        assert ran.exit_code == 0, ran.output
        return ran.output

    assert "lifecycle rule" not in said()
    minio.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert "give it a lifecycle rule" in said()


@pytest.mark.kafka
def test_a_daemon_on_such_a_server_waits_refused_and_goes_on_when_it_is_set_right(
    server: FakeS3, kafka: KafkaBroker | RunningKafka, dataset: str
) -> None:
    server.honest = False
    settings = {
        "S3__ENDPOINT_URL": server.url,
        "S3__ADDRESSING_STYLE": "path",
        "S3__ACCESS_KEY_ID": "AKIAFAKE",
        "S3__SECRET_ACCESS_KEY": "a-secret-of-ours",
        "DAEMON__REFUSED_RETRY_SECONDS": "0.5",
        "LOG__LEVEL": "debug",
    }
    with Daemon(name=dataset, uri="s3://bucket/t", kafka=kafka.bootstrap_servers, settings=settings) as daemon:
        assert "were told that they had created it" in daemon.wait_refused("store_unsafe")
        assert daemon.metric("committerd_refused_to_run", cause="store_unsafe") == 1
        assert not server.objects
        server.honest = True
        daemon.wait_ready(text="active")
        assert daemon.metric("committerd_refused_to_run", cause="store_unsafe") == 0
        assert "a-secret-of-ours" not in daemon.log.read_text(encoding="utf-8")


@pytest.mark.s3
@pytest.mark.parametrize("server_name", ["s3", "minio"])
async def test_real_servers_pass(server_name: str, request: pytest.FixtureRequest) -> None:
    endpoint: S3Endpoint = request.getfixturevalue(server_name)
    bucket = endpoint.make_bucket()
    async with opened(settings_of(endpoint), bucket, "t") as store:
        found = await tried(store)
    assert all(check.good for check in found.values()), found
    assert not endpoint.client().list_objects_v2(Bucket=bucket).get("Contents")
