"""Azure and Google Cloud Storage: what each response, and each missing one, means for a commit."""

from __future__ import annotations

import base64
import inspect
import json
import os
import re
import socket
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from committerd.commands.system import stores_of
from committerd.errors import ObjectUnreadable, PutUnknown, SettingsError, StoreUnavailable
from committerd.settings.clouds import AzureSettings, GcsSettings
from committerd.settings.load import load_storage_settings
from committerd.stores.cloud import Cloud
from committerd.stores.clouds import CLOUDS, CloudPlace, cloud_place
from committerd.stores.obstore_store import ObstoreClient, ObstoreStore
from committerd.stores.port import Created, Exists
from committerd.stores.probing import probe
from committerd.stores.retries import Fault
from harness.azure import AzureEndpoint
from tests.stores.answers import (
    DROPPED,
    DROPPED_AFTER,
    KEY,
    check_key_is_refused,
    check_no_second_try_on_a_connection_that_was_kept_open,
    check_put_is_unknown_and_sent_once,
)
from tests.stores.fake_s3 import Answer, FakeS3

ACCOUNT_KEY = base64.b64encode(b"a-secret-of-ours").decode()
URIS = {"azure": "az://bucket/a table", "gcs": "gs://bucket/a%20table"}


@pytest.fixture(params=URIS)
def cloud(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def silence_seconds(request: pytest.FixtureRequest) -> float:
    """Only a test whose server is silent waits for the end of a time limit."""
    params = getattr(request.node, "callspec", None)
    answer = params and params.params.get("answer")
    return 4 if isinstance(answer, Answer) and answer.silent else 30


@pytest.fixture
def store(
    cloud: str, server: FakeS3, faults: list[Fault], silence_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> ObstoreStore:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "a-secret-of-ours")
    return opened(
        cloud, server.url, faults, read_timeout_seconds=silence_seconds, connect_timeout_seconds=silence_seconds
    )


def opened(cloud: str, url: str, faults: list[Fault], **more: object) -> ObstoreStore:
    given = {"endpoint_url": url, "attempts": 3, **more}
    place = cloud_place(URIS[cloud])
    assert place is not None
    settings = (
        AzureSettings.model_validate({"account_name": "bucket", "account_key": ACCOUNT_KEY, **given})
        if cloud == "azure"
        else GcsSettings.model_validate(given)
    )
    return ObstoreStore(ObstoreClient(place.cloud, place.root, settings), place, failed=faults.append)


@pytest.mark.parametrize("kind", CLOUDS, ids=lambda kind: kind.service)
def test_a_cloud_takes_at_most_200_lines_of_its_own(kind: Cloud) -> None:
    module, group = inspect.getsource(inspect.getmodule(kind.options)), inspect.getsource(type(kind.defaults))  # type: ignore[arg-type]
    own = [line for line in f"{module}\n{group}".splitlines() if line.strip()]
    assert len(own) <= 200


@pytest.mark.parametrize(
    ("uri", "root", "prefix"),
    [
        ("az://lake/a%20b/t.lance/", "az://lake", "a b/t.lance/"),
        ("azure://lake/t.lance", "az://lake", "t.lance/"),
        ("abfss://lake@acc.dfs.core.windows.net/x//t", "abfss://lake@acc.dfs.core.windows.net", "x/t/"),
        ("GS://lake/t.lance", "gs://lake", "t.lance/"),
        ("gs://lake", "gs://lake", ""),
    ],
)
def test_a_uri_names_a_container_and_a_folder(uri: str, root: str, prefix: str) -> None:
    place = cloud_place(uri)
    assert place is not None
    assert (place.root, place.prefix) == (root, prefix)


def test_other_schemes_are_those_of_other_stores() -> None:
    assert [cloud_place(uri) for uri in ("s3://b/t", "/data/t", "file:///t", "az:t")] == [None] * 4


@pytest.mark.parametrize("uri", ["az:///t", "gs://b/../t", "gs://b/t?x=y", "az://b/t#x", "abfss://@a.b/t"])
def test_a_uri_that_is_no_place_is_refused_with_the_form_of_one(uri: str) -> None:
    with pytest.raises(SettingsError, match=r"(az|gs)://(container|bucket)/path"):
        cloud_place(uri)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("az://no.such/t", "can't be opened"),
        ("abfss://lake@acc.somewhere.else/t", "can't be opened"),
        ("az://lake/t", "[Aa]ccount"),
    ],
)
def test_a_container_that_can_not_be_is_a_wrong_setting(
    uri: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(SettingsError, match=message):
        stores_of(load_storage_settings()).open(uri)


@pytest.mark.parametrize(("uri", "extra"), [("az://lake/t", "azure"), ("gs://lake/t", "gcs")])
def test_without_obstore_the_extra_is_named(uri: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(SettingsError, match=rf"obstore, which is not installed: pip install '.*\[{extra}\]'"):
        stores_of(load_storage_settings()).open(uri)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Answer(status=500, code="InternalError"), Fault.SERVER_ERROR),
        (Answer(status=500, code="OperationTimedOut", applied=True), Fault.SERVER_ERROR),
        (Answer(status=502, body=b"<html>bad gateway</html>"), Fault.SERVER_ERROR),
        (Answer(status=503, code="ServerBusy"), Fault.THROTTLED),
        (Answer(status=503, code="ServerBusy", applied=True), Fault.THROTTLED),
        (Answer(status=408), Fault.TIMEOUT),
        (Answer(status=409, code="OperationInProgress"), Fault.REFUSED),
        (Answer(silent=True), Fault.TIMEOUT),
        (Answer(silent=True, applied=True), Fault.TIMEOUT),
        (DROPPED, Fault.CONNECTION),
        (DROPPED_AFTER, Fault.CONNECTION),
    ],
)
async def test_a_put_if_absent_that_may_have_landed_is_unknown_and_sent_once(
    store: ObstoreStore, server: FakeS3, faults: list[Fault], answer: Answer, fault: Fault
) -> None:
    await check_put_is_unknown_and_sent_once(store, server, faults, answer, fault, uri="://bucket/a table")


async def test_a_connection_that_was_kept_open_is_not_used_for_a_second_try_in_secret(
    store: ObstoreStore, server: FakeS3
) -> None:
    await check_no_second_try_on_a_connection_that_was_kept_open(store, server)


@pytest.mark.parametrize("answer", [Answer(status=412), Answer(status=409, code="BlobAlreadyExists")])
async def test_a_key_that_is_taken_is_an_answer(
    store: ObstoreStore, server: FakeS3, faults: list[Fault], answer: Answer
) -> None:
    server.script.append(answer)
    assert await store.put_if_absent(KEY, b"ours") == Exists()
    assert faults == []


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (Answer(status=403, code="AuthorizationPermissionMismatch"), "give them the role"),
        (Answer(status=401, code="InvalidAuthenticationInfo"), "credentials are not valid there"),
        (Answer(status=429, code="TooManyRequests"), "429"),
        (Answer(status=404, code="ContainerNotFound"), "404"),
        (Answer(status=404, code="NoSuchBucket"), "404"),
        (Answer(status=501, code="NotImplemented"), "501"),
    ],
)
async def test_a_put_if_absent_that_was_refused_changed_nothing_and_says_what_to_do(
    store: ObstoreStore, server: FakeS3, answer: Answer, advice: str
) -> None:
    server.script.append(answer)
    with pytest.raises(StoreUnavailable, match=advice) as caught:
        await store.put_if_absent(KEY, b"ours")
    assert not isinstance(caught.value, ObjectUnreadable)
    assert ACCOUNT_KEY not in str(caught.value)
    assert not server.objects


@pytest.mark.parametrize(
    ("answer", "own"),
    [
        (Answer(status=403, code="AuthorizationFailure"), True),
        (Answer(status=400, body=b""), True),
        (Answer(status=409, code="BlobArchived"), True),
        (Answer(status=404, code="NoSuchBucket"), True),
        (Answer(status=501, code="NotImplemented"), False),
    ],
)
async def test_a_refusal_to_read_may_be_of_that_object_alone_and_is_not_tried_again(
    store: ObstoreStore, server: FakeS3, answer: Answer, own: bool
) -> None:
    for read in (store.get(KEY), store.get_range(KEY, 0, 1)):
        server.script.append(answer)
        with pytest.raises(StoreUnavailable) as caught:
            await read
        assert isinstance(caught.value, ObjectUnreadable) is own
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=503, code="ServerBusy"),
        Answer(status=429),
        Answer(status=500),
        pytest.param(Answer(silent=True), marks=pytest.mark.long),
        DROPPED,
        Answer(applied=True, cut=2),
    ],
)
async def test_what_may_be_repeated_is(
    store: ObstoreStore, server: FakeS3, faults: list[Fault], answer: Answer
) -> None:
    server.objects["a table/o"] = b"0123456789"
    server.script.extend([answer, answer])
    assert await store.get("o") == b"0123456789"
    assert len(faults) == 2
    server.script.extend([answer, answer, answer])
    with pytest.raises(StoreUnavailable):
        await store.get("o")
    assert len(faults) == 5


async def test_versions_of_blobs_are_noticed_where_a_put_tells_of_them(
    store: ObstoreStore, server: FakeS3, cloud: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client = store._client
    await store.put("o", b"x")
    assert client.versioning_advice == ""
    of_azure = {"ETag": '"1"', "x-ms-version-id": "2026-01-31T23:59:59.0000000Z"}
    of_gcs = {"ETag": '"1"', "x-goog-generation": "1769903999000000"}  # every object has such a number
    server.script.extend([Answer(headers=of_azure if cloud == "azure" else of_gcs, body=b"")] * 2)
    assert await store.put_if_absent(KEY, b"x") == Created()
    await store.put("o", b"x")
    assert ("lifecycle rule that deletes previous versions" in client.versioning_advice) is (cloud == "azure")
    assert [record.getMessage() for record in caplog.records].count("cloud.container_versioned") == (cloud == "azure")


async def test_a_walk_goes_on_after_a_page_that_failed(
    server: FakeS3, faults: list[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "a-secret-of-ours")
    store = opened("gcs", server.url, faults)
    keys = {f"data/{number:04}" for number in range(2500)}
    server.objects |= {f"a table/{key}": b"" for key in keys}
    seen: set[str] = set()
    async for page in store.walk("data/"):
        seen |= {one.key for one in page}
        if len(seen) == 1000:
            server.script.append(Answer(status=503))
    assert seen == keys
    assert faults == [Fault.THROTTLED]


@pytest.mark.parametrize(
    "key",
    [
        "data/x in 7ms - Server returned non-2xx status code: 503",
        "data/Generic GCS error: Error performing token request: x",
        "data/<Code>NoSuchBucket<Code>",
        "data/HttpError { kind: Timeout",
        "data/(code: 503)",
    ],
)
async def test_a_key_of_a_record_does_not_pass_for_what_happened(
    store: ObstoreStore, faults: list[Fault], key: str
) -> None:
    assert await store.get(key) is None
    assert await store.head(key) is None
    assert faults == []


@pytest.mark.parametrize("key", ["../x", "/x", "a//b", "a/./b", "x\0", "x\n", "\ud800", "", "k" * 1100])
async def test_a_key_that_leaves_the_table_or_can_not_be_is_refused(
    store: ObstoreStore, server: FakeS3, key: str
) -> None:
    await check_key_is_refused(store, server, key)


async def test_a_server_that_is_not_there_changed_nothing(
    cloud: str, faults: list[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "a-secret-of-ours")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        store = opened(cloud, f"http://127.0.0.1:{free.getsockname()[1]}", faults)
        with pytest.raises(StoreUnavailable, match="error sending request"):
            await store.put_if_absent(KEY, b"ours")
    assert faults == [Fault.CONNECTION]


@pytest.mark.parametrize("status", [400, 503])
async def test_credentials_that_can_not_be_fetched_are_no_fault_of_an_object(
    server: FakeS3, faults: list[Fault], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    of_a_principal = {"account_key": None, "client_id": "me", "client_secret": "hunter2", "tenant_id": "us"}
    store = opened("azure", server.url, faults, **of_a_principal, authority_host=server.url)
    server.script.extend([Answer(status=status, body=b"{}")] * 4)
    with pytest.raises(StoreUnavailable, match="no credentials to send it with") as caught:
        await store.get(KEY)
    assert not isinstance(caught.value, ObjectUnreadable | PutUnknown)
    assert "hunter2" not in str(caught.value)
    assert all(request.endswith("/token") for request in server.requests)
    server.script.extend([Answer(status=status, body=b"{}")] * 4)
    with pytest.raises(StoreUnavailable, match="no credentials to send it with"):
        await store.put_if_absent(KEY, b"ours")


async def test_tokens_come_by_workload_identity_federation_too(
    server: FakeS3, faults: list[Fault], tmp_path: Path
) -> None:
    subject = tmp_path / "token"
    subject.write_text("of the cluster")
    file = tmp_path / "federation.json"
    about = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{server.url}/v1/token",
        "credential_source": {"file": str(subject)},
    }
    file.write_text(json.dumps(about))
    token = {"access_token": "a-secret-of-ours", "expires_in": 3600, "token_type": "Bearer", "issued_token_type": "x"}
    store = opened("gcs", server.url, faults, application_credentials=str(file))
    server.script.append(Answer(body=json.dumps(token).encode()))
    assert await store.put_if_absent(KEY, b"ours") == Created()
    assert server.requests == ["POST /v1/token", "PUT /bucket/a table/_versions/1.manifest"]
    assert server.headers[1]["Authorization"] == "Bearer a-secret-of-ours"

    other = opened("gcs", server.url, faults, application_credentials=str(file))
    server.script.append(Answer(status=400, body=b'{"error": "invalid_grant"}'))
    with pytest.raises(StoreUnavailable, match="no credentials to send it with") as caught:
        await other.get(KEY)
    assert not isinstance(caught.value, ObjectUnreadable)

    file.write_text(json.dumps(about | {"audience": None, "credential_source": {}}))
    with pytest.raises(SettingsError, match="can't be opened"):
        opened("gcs", server.url, faults, application_credentials=str(file))


@pytest.mark.azure
async def test_a_shared_access_signature_is_enough(azure: AzureEndpoint) -> None:
    container = azure.make_bucket()
    given = AzureSettings.model_validate(
        {
            "endpoint_url": azure.url,
            "account_name": azure.account,
            "sas_token": azure.signature(container),
        }
    )
    place = cloud_place(f"az://{container}/t.lance")
    assert place is not None
    store = ObstoreStore(ObstoreClient(place.cloud, place.root, given), place)
    checks = await probe(store, now=datetime.now(UTC), new_uuid=uuid.uuid4)
    assert [check.fault for check in checks] == [""] * 5


@pytest.mark.azure
def test_a_command_ends_with_its_own_exit_code(azure: AzureEndpoint) -> None:
    """The interpreter would not wait for obstore's threads, and a third of such processes would be aborted."""
    uri = f"az://{azure.make_bucket()}/t.lance"
    environment = os.environ | {f"COMMITTERD_{name}": value for name, value in azure.settings().items()}
    command = [sys.executable, "-m", "committerd", "probe", uri]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for _ in range(6)]
    assert [one.wait() for one in running] == [0] * 6


@pytest.mark.azure
async def test_azure_refuses_wrong_credentials_and_knows_no_other_container(azure: AzureEndpoint) -> None:
    def store(container: str, key: str) -> ObstoreStore:
        settings = AzureSettings.model_validate(
            {"endpoint_url": azure.url, "account_name": azure.account, "account_key": key}
        )
        place = cloud_place(f"az://{container}/t.lance")
        assert isinstance(place, CloudPlace)
        return ObstoreStore(ObstoreClient(place.cloud, place.root, settings), place)

    container = azure.make_bucket()
    with pytest.raises(StoreUnavailable, match="credentials are not valid there"):
        await store(container, ACCOUNT_KEY).put_if_absent(KEY, b"ours")
    elsewhere = store("no-such-container", azure.key)
    for act in (elsewhere.put_if_absent(KEY, b"ours"), elsewhere.list("_versions/"), elsewhere.get(KEY)):
        with pytest.raises(StoreUnavailable, match="create the container"):
            await act
    assert await store(container, azure.key).put_if_absent(KEY, b"ours") == Created()


@pytest.mark.parametrize(
    ("group", "given"),
    [
        (AzureSettings, {"account_key": "a", "sas_token": "b"}),
        (GcsSettings, {"service_account": "a", "service_account_key": "b"}),
        (AzureSettings, {"endpoint_url": "https://me:hunter2@host"}),
        (GcsSettings, {"endpoint_url": "ftp://host"}),
    ],
)
def test_settings_that_contradict_each_other_are_refused_without_telling_secrets(group: Any, given: Any) -> None:
    with pytest.raises(ValueError, match=r"exclude each other|endpoint|must not contain") as caught:
        group.model_validate(given)
    assert not re.search("hunter2", str(caught.value))
