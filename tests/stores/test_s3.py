"""S3: what each response, and each missing one, means for a commit."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from committerd.errors import ObjectUnreadable, PutUnknown, SettingsError, StoreUnavailable
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.s3 import S3Settings
from committerd.stores.aws import AwsClient
from committerd.stores.open import Stores
from committerd.stores.port import Created, Exists, Tail
from committerd.stores.retries import Fault
from committerd.stores.s3 import S3Place, S3Store, s3_client, s3_place
from committerd.telemetry import Metrics
from harness.s3 import S3Endpoint
from tests.stores.answers import (
    DROPPED,
    DROPPED_AFTER,
    KEY,
    check_key_is_refused,
    check_no_second_try_on_a_connection_that_was_kept_open,
    check_put_is_unknown_and_sent_once,
)
from tests.stores.fake_s3 import Answer, FakeS3
from tests.stores.s3_stores import opened, settings_of

THROTTLED = Answer(status=503, code="SlowDown")


@pytest.fixture
def silence_seconds(request: pytest.FixtureRequest) -> float:
    """How long the client waits for the server: long, unless the test is about a server that does not answer."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    return 4 if isinstance(answer := params.get("answer"), Answer) and answer.silent else 30


@pytest.fixture
async def client(server: FakeS3, silence_seconds: float) -> AsyncIterator[AwsClient]:
    made = s3_client(server.settings(read_timeout_seconds=silence_seconds))
    yield made
    await made.aclose()


@pytest.fixture
def store(client: AwsClient, faults: list[Fault]) -> S3Store:
    return S3Store(client, S3Place("bucket", "a table/"), failed=faults.append)


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("s3://b/t.lance", S3Place("b", "t.lance/")),
        ("s3a://b/x/t.lance/", S3Place("b", "x/t.lance/")),
        ("S3N://b//x//t", S3Place("b", "x/t/")),
        ("s3://b/a%20table%23", S3Place("b", "a table#/")),
        ("s3://b", S3Place("b", "")),
        ("/data/t", None),
        ("gs://b/t", None),
        ("s3+ddb://b/t?ddbTableName=d", None),
    ],
)
def test_a_uri_names_a_bucket_and_a_folder(uri: str, place: S3Place | None) -> None:
    assert s3_place(uri) == place


@pytest.mark.parametrize("uri", ["s3:///t", "s3://b/../t", "s3://b/t?x=y", "s3://b/t#x", "s3://AKIA:hunter2@b/t"])
def test_a_uri_that_is_no_place_is_refused_without_telling_secrets(uri: str) -> None:
    with pytest.raises(SettingsError) as caught:
        s3_place(uri)
    assert "s3://bucket/path" in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_only_a_put_if_absent_carries_a_condition_and_none_a_checksum(store: S3Store, server: FakeS3) -> None:
    await store.put("o", b"x")
    assert await store.put_if_absent(KEY, b"x") == Created()
    assert await store.put_if_absent(KEY, b"y") == Exists()
    assert [headers.get("If-None-Match") for headers in server.headers] == [None, "*", "*"]
    assert not [name for headers in server.headers for name in headers if "checksum" in name.lower()]
    assert server.requests[0] == "PUT /bucket/a table/o"


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Answer(status=500, code="InternalError"), Fault.SERVER_ERROR),
        (Answer(status=502, body=b"<html>bad gateway</html>"), Fault.SERVER_ERROR),
        (Answer(status=503, code="ServiceUnavailable"), Fault.THROTTLED),
        (Answer(status=503, code="SlowDown", applied=True), Fault.THROTTLED),
        (Answer(status=400, code="RequestTimeout"), Fault.TIMEOUT),
        (Answer(status=409, code="ConditionalRequestConflict"), Fault.REFUSED),
        (Answer(status=200, silent=True), Fault.TIMEOUT),
        (Answer(silent=True, applied=True), Fault.TIMEOUT),
        (DROPPED, Fault.CONNECTION),
        (DROPPED_AFTER, Fault.CONNECTION),
    ],
)
async def test_a_put_if_absent_that_may_have_landed_is_unknown_and_sent_once(
    store: S3Store, server: FakeS3, faults: list[Fault], answer: Answer, fault: Fault
) -> None:
    await check_put_is_unknown_and_sent_once(store, server, faults, answer, fault, uri="s3://bucket/a table")
    # The same bytes once more settle it.
    assert await store.put_if_absent(KEY, b"ours") == (Exists() if answer.applied else Created())


async def test_a_connection_that_was_kept_open_is_not_used_for_a_second_try_in_secret(
    store: S3Store, server: FakeS3
) -> None:
    await check_no_second_try_on_a_connection_that_was_kept_open(store, server)


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (Answer(status=403, code="AccessDenied"), "allow s3:GetObject, s3:PutObject and s3:DeleteObject"),
        (Answer(status=403, code="InvalidAccessKeyId"), "credentials are not valid"),
        (Answer(status=403, code="SignatureDoesNotMatch"), r"check s3\.access_key_id"),
        (Answer(status=400, code="ExpiredToken"), "temporary credentials have ended"),
        (Answer(status=404, code="NoSuchBucket"), "create the bucket"),
        (Answer(status=301, code="PermanentRedirect"), r"set s3\.region"),
        (Answer(status=400, code="AuthorizationHeaderMalformed"), r"set s3\.region"),
        (Answer(status=400, code="EntityTooLarge"), "5 GiB"),
        (Answer(status=501, code="NotImplemented"), "committerd probe"),
        (Answer(status=403, code="RequestTimeTooSkewed"), "clock"),
        (Answer(status=429, code="TooManyRequests"), "429"),
        (Answer(status=404, body=b""), "404"),
    ],
)
async def test_a_put_if_absent_that_was_refused_changed_nothing_and_says_what_to_do(
    store: S3Store, server: FakeS3, answer: Answer, advice: str
) -> None:
    server.script.append(answer)
    with pytest.raises(StoreUnavailable, match=advice) as caught:
        await store.put_if_absent(KEY, b"ours")
    assert "a-secret-of-ours" not in str(caught.value)
    assert not server.objects


async def test_a_refusal_is_not_tried_again(store: S3Store, server: FakeS3, faults: list[Fault]) -> None:
    server.script.append(Answer(status=403, code="AccessDenied"))
    with pytest.raises(StoreUnavailable, match="AccessDenied"):
        await store.get(KEY)
    assert len(server.requests) == 1
    assert faults == [Fault.REFUSED]


@pytest.mark.parametrize(
    ("answer", "own"),
    [
        (Answer(status=400, code="KMS.DisabledException"), True),
        (Answer(status=403, code="AccessDenied"), True),
        (Answer(status=403, code="InvalidObjectState"), True),
        (Answer(status=400, body=b""), True),
        (Answer(status=404, code="NoSuchBucket"), True),
        (Answer(status=501, code="NotImplemented"), False),
        (Answer(status=301, code="PermanentRedirect"), False),
    ],
)
async def test_a_refusal_to_read_may_be_of_that_object_alone(
    store: S3Store, server: FakeS3, answer: Answer, own: bool
) -> None:
    for read in (store.get(KEY), store.get_range(KEY, 0, 1), store.get_tail(KEY, 1)):
        server.script.extend([answer] * 2)  # what the quick way meets, the SDK requests again
        with pytest.raises(StoreUnavailable) as caught:
            await read
        assert isinstance(caught.value, ObjectUnreadable) is own
        server.script.clear()


async def test_a_refusal_to_look_may_be_of_that_object_alone(store: S3Store, server: FakeS3) -> None:
    for status in (400, 403):
        server.script.extend([Answer(status=status)] * 2)  # what the quick way meets, the SDK requests again
        with pytest.raises(ObjectUnreadable, match=str(status)):
            await store.head(KEY)
        server.script.clear()
    server.script.append(Answer(status=403))
    with pytest.raises(StoreUnavailable) as caught:
        await store.list("_versions/")
    assert not isinstance(caught.value, ObjectUnreadable)


@pytest.mark.s3
@pytest.mark.parametrize("server_name", ["s3", "minio"])
async def test_a_name_that_a_real_server_does_not_take_stops_nothing(
    server_name: str, request: pytest.FixtureRequest
) -> None:
    """MinIO and file systems behind a server refuse names above 255 characters with 400; others find nothing."""
    endpoint: S3Endpoint = request.getfixturevalue(server_name)
    async with opened(settings_of(endpoint), endpoint.make_bucket(), "t") as store:
        for read in (store.head, store.get):
            with suppress(ObjectUnreadable):
                assert await read("_transactions/" + "x" * 300) is None
        assert await store.list("_transactions/") == []


async def test_a_server_that_is_not_there_changed_nothing(faults: list[Fault]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        settings = S3Settings.model_validate(
            {"endpoint_url": url, "access_key_id": "a", "secret_access_key": "b", "attempts": 1}
        )
        client = s3_client(settings)
        with pytest.raises(StoreUnavailable, match="connect"):
            await S3Store(client, S3Place("bucket", ""), failed=faults.append).put_if_absent(KEY, b"ours")
        await client.aclose()
    assert faults == [Fault.CONNECTION]


async def test_a_name_that_resolves_to_nothing_changed_nothing() -> None:
    settings = S3Settings.model_validate(
        {"endpoint_url": "http://s3.invalid:1", "access_key_id": "a", "secret_access_key": "b"}
    )
    client = s3_client(settings)
    with pytest.raises(StoreUnavailable, match=r"s3\.invalid"):
        await S3Store(client, S3Place("bucket", "")).put_if_absent(KEY, b"ours")
    await client.aclose()


async def test_without_credentials_nothing_is_sent(server: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    settings = server.settings(access_key_id=None, secret_access_key=None)
    client = s3_client(settings)
    with pytest.raises(StoreUnavailable, match="credentials"):
        await S3Store(client, S3Place("bucket", "")).put_if_absent(KEY, b"ours")
    assert not server.requests
    await client.aclose()


async def test_credentials_in_a_file_are_read_again_when_it_changes(
    server: FakeS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setattr("committerd.stores.aws._CREDENTIALS_SECONDS", 0.0)

    def write(text: str) -> None:
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").replace(file)  # as a mounted Secret is replaced

    async def signed_by() -> str:
        await ours.put(KEY, b"ours")
        found = re.search(r"Credential=(\w+)/", server.headers[-1]["Authorization"])
        assert found
        return found[1]

    write("[default]\naws_access_key_id = FIRST\naws_secret_access_key = a\n")
    settings = server.settings(access_key_id=None, secret_access_key=None)
    client = s3_client(settings)
    ours = S3Store(client, S3Place("bucket", ""))
    assert await signed_by() == "FIRST"
    write("[default]\naws_access_key_id = SECOND\naws_secret_access_key = b\naws_session_token = t\n")
    assert await signed_by() == "SECOND"
    assert server.headers[-1]["X-Amz-Security-Token"] == "t"
    write("[default]\naws_access_key_id = HALF-WRIT")
    assert await signed_by() == "SECOND"
    write("[default]\naws_access_key_id = THIRD\naws_secret_access_key = c\n")
    assert await signed_by() == "THIRD"
    await client.aclose()


async def test_an_unknown_profile_is_a_wrong_setting(server: FakeS3) -> None:
    settings = server.settings(access_key_id=None, secret_access_key=None, profile="no-such-profile")
    client = s3_client(settings)
    with pytest.raises(SettingsError, match=r"no-such-profile.*s3\.profile"):
        await S3Store(client, S3Place("bucket", "")).head("o")


async def test_the_end_of_temporary_credentials_is_known(
    server: FakeS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """botocore keeps it in a private attribute, and has no public one."""
    end = datetime(2040, 1, 2, 3, 4, 5, tzinfo=UTC)
    keys = {
        "Version": 1,
        "AccessKeyId": "a",
        "SecretAccessKey": "s",
        "SessionToken": "t",
        "Expiration": end.isoformat(),
    }
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    (tmp_path / "config").write_text(f"[profile lake]\ncredential_process = cat {tmp_path / 'keys.json'}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    temporary = server.settings(access_key_id=None, secret_access_key=None, profile="lake")
    for settings, known in ((server.settings(), 0), (temporary, end.timestamp())):
        registry = CollectorRegistry()
        async with Stores(settings, DynamoDBSettings(), telemetry=Metrics(registry).process) as stores:
            await stores.open("s3://bucket/t").put("a", b"")
            name = "committerd_credentials_expiry_timestamp_seconds"
            assert registry.get_sample_value(name, {"service": "s3"}) == known


async def test_a_ca_bundle_that_is_not_there_is_a_wrong_setting(server: FakeS3) -> None:
    async with opened(server.settings(ca_bundle="/no/such.pem"), "bucket", "t") as store:
        with pytest.raises(SettingsError, match=r"s3\.ca_bundle.*/no/such\.pem"):
            await store.head("o")


@pytest.mark.parametrize(
    "answer",
    [
        THROTTLED,
        Answer(status=429, code="TooManyRequests"),
        Answer(status=500, code="InternalError"),
        Answer(silent=True),
        DROPPED,
        Answer(cut=3, applied=True),
    ],
)
async def test_what_may_be_repeated_is(store: S3Store, server: FakeS3, faults: list[Fault], answer: Answer) -> None:
    server.objects["a table/o"] = b"0123456789"
    server.script += [answer, answer]
    assert await store.get("o") == b"0123456789"
    assert len(server.requests) == 3
    assert len(faults) == 2


async def test_it_gives_up_after_as_many_attempts_as_the_setting_says(
    store: S3Store, server: FakeS3, faults: list[Fault]
) -> None:
    server.script += [THROTTLED] * 4
    with pytest.raises(StoreUnavailable, match="503 SlowDown"):
        await store.list("_versions/")
    assert (len(server.requests), faults) == (3, [Fault.THROTTLED] * 3)


async def test_a_put_and_a_copy_and_a_delete_are_repeated_too(store: S3Store, server: FakeS3) -> None:
    server.script.append(DROPPED_AFTER)
    await store.put("o", b"x")
    server.script.append(DROPPED_AFTER)
    assert await store.copy("o", "p")
    server.script.append(DROPPED_AFTER)
    await store.delete("o")
    assert server.objects == {"a table/p": b"x"}
    assert len(server.requests) == 6


@pytest.mark.parametrize("conditional", [True, False])
async def test_a_server_that_asks_for_time_gets_it(
    store: S3Store, server: FakeS3, monkeypatch: pytest.MonkeyPatch, conditional: bool
) -> None:
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("committerd.stores.retries.anyio.sleep", sleep)
    server.script.append(Answer(status=503, code="SlowDown", headers={"Retry-After": "7"}))
    if conditional:
        with pytest.raises(PutUnknown):
            await store.put_if_absent(KEY, b"x")
    else:
        await store.put(KEY, b"x")
    assert len(slept) == 1
    assert 7 <= slept[0] < 8
    later = ["3600", "Wed, 21 Oct 2026 07:28:00 GMT", "nan"]
    for value in later:
        server.script.append(Answer(status=503, code="SlowDown", headers={"Retry-After": value}))
        await store.put(KEY, b"x")
    assert slept[1] == 20
    assert all(0 <= seconds < 1 for seconds in slept[2:])
    assert len(slept) == 4


async def test_an_answer_that_says_no_length_and_ends_early_is_not_taken_for_the_object(
    store: S3Store, server: FakeS3
) -> None:
    server.objects["a table/o"] = b"0123456789"
    server.script += [Answer(cut=9, applied=True)] * 3
    with pytest.raises(StoreUnavailable):
        await store.get("o")


async def test_a_tail_of_a_server_without_ranges_from_the_end(server: FakeS3, store: S3Store) -> None:
    server.objects["a table/o"] = b"0123456789"
    server.script.append(Answer(status=416, code="InvalidRange"))
    assert await store.get_tail("o", 4) == Tail(body=b"6789", size=10)
    assert server.requests == ["GET /bucket/a table/o", "HEAD /bucket/a table/o", "GET /bucket/a table/o"]


async def test_an_answer_that_does_not_tell_the_size_of_the_whole(server: FakeS3, store: S3Store) -> None:
    server.objects["a table/o"] = b"0123456789"
    server.script.append(Answer(status=206, body=b"6789", headers={"Content-Range": "bytes 6-9/*"}))
    assert await store.get_tail("o", 4) == Tail(body=b"6789", size=10)


async def test_what_is_an_answer_is_no_failure(store: S3Store, server: FakeS3, faults: list[Fault]) -> None:
    server.objects["a table/o"] = b""
    assert await store.get("none") is None
    assert await store.head("none") is None
    assert await store.put_if_absent("o", b"x") == Exists()
    assert await store.get_tail("o", 4) == Tail(body=b"", size=0)
    assert not faults


async def test_a_server_that_takes_no_notice_of_ranges_is_understood(server: FakeS3, store: S3Store) -> None:
    server.ranges = False
    server.objects["a table/o"] = b"0123456789"
    assert await store.get_tail("o", 4) == Tail(body=b"6789", size=10)
    assert await store.get_range("o", 3, 5) == b"34"


async def test_a_long_folder_is_listed_in_pages(store: S3Store, server: FakeS3) -> None:
    names = [f"a table/_versions/{number:05}" for number in range(2500)]
    server.objects = dict.fromkeys([*names, "a table/_versions/", "a table/_versions/below/x"], b"")
    keys = [name.removeprefix("a table/") for name in names]
    assert await store.list("_versions/") == keys
    assert len(server.requests) == 3
    assert await store.list("_versions/", start_after=keys[1], limit=2) == keys[2:4]
    # A page without anything of interest is not the end.
    assert await store.list("_versions/", limit=1) == keys[:1]


@pytest.mark.parametrize("status", [404, 412])
async def test_what_is_no_answer_to_a_request_is_a_failure(store: S3Store, server: FakeS3, status: int) -> None:
    for request in (store.put("o", b""), store.list("_versions/")):
        server.script.append(Answer(status=status, body=b""))
        with pytest.raises(StoreUnavailable, match=str(status)):
            await request


async def test_a_list_without_a_bucket_is_no_empty_folder(client: AwsClient) -> None:
    with pytest.raises(StoreUnavailable, match=r"NoSuchBucket.*create the bucket"):
        await S3Store(client, S3Place("other", "t/")).list("_versions/")


@pytest.mark.parametrize("key", ["../x", "/x", "a//b", "a/./b", "x\0", "", "k" * 1100])
async def test_a_key_that_leaves_the_table_or_can_not_be_is_refused(store: S3Store, server: FakeS3, key: str) -> None:
    await check_key_is_refused(store, server, key)


async def test_no_secret_in_what_is_shown_or_logged(
    store: S3Store, client: AwsClient, server: FakeS3, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.script.append(Answer(status=403, code="SignatureDoesNotMatch"))
    with pytest.raises(StoreUnavailable) as caught:
        await store.get("o")
    shown = [repr(server.settings()), repr(store), repr(client), str(caught.value), caplog.text]
    assert not [text for text in shown if "a-secret-of-ours" in text]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endpoint_url": "https://me:hunter2@host"}, "must not contain a user or password"),
        ({"endpoint_url": "host:9000"}, "http://host:port"),
        ({"access_key_id": "a"}, "belong together"),
        ({"session_token": "hunter2"}, "session_token needs"),
        ({"access_key_id": "a", "secret_access_key": "hunter2", "profile": "p"}, "exclude each other"),
        ({"ca_bundle": "/ca.pem", "tls_verify": False}, "ca_bundle has no effect"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_without_telling_secrets(
    given: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        S3Settings.model_validate(given)
    assert "hunter2" not in str(caught.value)


@pytest.mark.s3
@pytest.mark.parametrize("server_name", ["s3", "minio"])
async def test_real_servers_refuse_wrong_credentials_and_we_say_what_to_do(
    server_name: str, request: pytest.FixtureRequest
) -> None:
    endpoint: S3Endpoint = request.getfixturevalue(server_name)
    async with opened(settings_of(endpoint, secret_access_key="hunter2"), "some-bucket", "t") as store:
        with pytest.raises(StoreUnavailable, match="credentials are not valid") as caught:
            await store.put_if_absent(KEY, b"x")
    assert "hunter2" not in str(caught.value)


async def test_a_head_that_does_not_tell_the_size_is_no_empty_object(store: S3Store, server: FakeS3) -> None:
    server.script.append(Answer(status=200, headers={"Transfer-Encoding": "chunked"}))
    with pytest.raises(StoreUnavailable, match="does not report the object's size"):
        await store.head("o")


@pytest.mark.s3
async def test_another_region_than_the_servers_is_found_out(s3: S3Endpoint) -> None:
    async with opened(settings_of(s3, region="eu-north-1"), s3.make_bucket(), "t") as store:
        assert await store.put_if_absent(KEY, b"x") == Created()
        assert await store.put_if_absent(KEY, b"y") == Exists()
        assert await store.get(KEY) == b"x"


class TestTheEndOfADataFile:
    """It is read to check the file: at the cost of a HEAD, and with as many connections."""

    async def test_is_answered_alike_either_way(self, store: S3Store, server: FakeS3) -> None:
        server.objects["a table/data/a.lance"] = b"12345"
        for _ in range(3):
            assert await store.get_tail("data/a.lance", 2) == Tail(body=b"45", size=5)
            assert await store.get_tail("data/none.lance", 2) is None
        by_sdk = ["amz-sdk-invocation-id" in headers for headers in server.headers]
        assert by_sdk == [True, False, False, False, False, False]


class TestAGet:
    """The first one of a bucket uses the SDK, which finds the endpoint; later ones cost little."""

    async def test_is_answered_alike_either_way(self, store: S3Store, server: FakeS3) -> None:
        server.objects["a table/_deletions/a~b ä%.arrow"] = b"12345"
        for _ in range(3):
            assert await store.get("_deletions/a~b ä%.arrow") == b"12345"
            assert await store.get_range("_deletions/a~b ä%.arrow", 1, 3) == b"23"
            assert await store.get_tail("_deletions/a~b ä%.arrow", 2) == Tail(body=b"45", size=5)
            assert await store.get("_deletions/nothing") is None

    async def test_is_sent_without_the_sdk_once_the_way_is_known(self, store: S3Store, server: FakeS3) -> None:
        server.objects["a table/o"] = b"12345"
        for _ in range(3):
            assert await store.get_range("o", 0, 100) == b"12345"
        by_sdk = ["amz-sdk-invocation-id" in headers for headers in server.headers]
        assert by_sdk == [True, False, False]
        assert server.headers[0]["User-Agent"] == server.headers[1]["User-Agent"]

    async def test_goes_by_the_sdk_where_that_signs_in_another_manner(
        self, store: S3Store, server: FakeS3, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("committerd.stores.plain_reads._ALGORITHM", "AWS4-ECDSA-P256-SHA256")
        for _ in range(2):
            assert await store.get("o") is None
        assert all("amz-sdk-invocation-id" in headers for headers in server.headers)

    async def test_is_signed_with_the_session_token_too(self, server: FakeS3) -> None:
        async with opened(server.settings(session_token="t"), "bucket", "t") as store:
            for _ in range(2):
                assert await store.get("o") is None
        tokens = [
            value for sent in server.headers for name, value in sent.items() if name.lower() == "x-amz-security-token"
        ]
        assert tokens == ["t", "t"]

    @pytest.mark.parametrize(
        ("answer", "fault"),
        [
            (THROTTLED, Fault.THROTTLED),
            (Answer(status=500), Fault.SERVER_ERROR),
            (Answer(silent=True), Fault.TIMEOUT),
            (DROPPED, Fault.CONNECTION),
            (Answer(cut=3, applied=True), Fault.TRUNCATED),
        ],
    )
    async def test_that_got_no_good_answer_is_repeated_as_any_other(
        self, store: S3Store, server: FakeS3, faults: list[Fault], answer: Answer, fault: Fault
    ) -> None:
        server.objects["a table/o"] = b"12345"
        assert await store.get("o") == b"12345"
        server.script.append(answer)
        assert await store.get("o") == b"12345"
        assert (len(server.requests), faults) == (3, [fault])
        server.script += [answer] * 3
        with pytest.raises(StoreUnavailable, match="s3 get_object of s3://bucket/a table/o failed"):
            await store.get("o")
        assert len(server.requests) == 6

    async def test_that_was_refused_is_told_by_the_sdk_and_the_way_is_learnt_anew(
        self, store: S3Store, server: FakeS3
    ) -> None:
        server.objects["a table/o"] = b"12345"
        assert await store.get("o") == b"12345"
        assert await store.get("none") is None
        server.script += [Answer(status=403), Answer(status=403)]
        with pytest.raises(ObjectUnreadable, match="403"):
            await store.get("o")
        assert await store.get("o") == b"12345"
        assert ["amz-sdk-invocation-id" in headers for headers in server.headers] == [True, False, False, True, False]
