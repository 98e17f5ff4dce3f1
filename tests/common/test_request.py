"""Records of the staged topic: every header, and every way in which a record can be wrong."""

from __future__ import annotations

import pytest

from committerd.errors import InvalidRequest
from committerd.queue.port import Record, record_sha256, record_size
from committerd_common.messages import Transaction
from committerd_common.request import (
    COPIED_BYTES_MAX,
    HEADER_BYTES_MAX,
    AppUnit,
    ClaimCheck,
    Envelope,
    Request,
    decode_envelope,
    decode_transaction,
    who_asked,
)
from committerd_common.uris import canonical_base, canonical_uri, dataset_name, is_below, names_same_table

UUID = "6b2f4d1e-0c1a-4f8e-9a55-2f3d7c9b1e00"


def headers(**texts: str) -> list[tuple[str, bytes]]:
    return [(name.replace("_", "-"), text.encode()) for name, text in texts.items()]


def test_a_record_without_headers_asks_for_nothing_special() -> None:
    assert decode_envelope([]) == Envelope()


def test_every_header_is_read() -> None:
    envelope = decode_envelope(
        headers(
            dataset="s3://b/t",
            producer="job-1",
            app_id="spark.1",
            app_version="7",
            app_run="q",
            create_only="True",
            create_options='{"enable_stable_row_ids": true}',
            read_uuid=UUID,
            deadline_ms="1700000000000",
            attempt="2",
            retry_of=UUID,
            replay_of="events.dead/3",
            outcome_partition="5",
            transaction_file="big.txn",
            transaction_sha256="a" * 64,
            traceparent="00-1-2-01",
            something_else="ignored",
        )
    )
    assert envelope == Envelope(
        dataset="s3://b/t",
        producer="job-1",
        app=AppUnit(app_id="spark.1", version=7, run="q"),
        create_only=True,
        create_options={"enable_stable_row_ids": True},
        read_uuid=UUID,
        deadline_ms=1700000000000,
        attempt=2,
        retry_of=UUID,
        replay_of="events.dead/3",
        outcome_partition=5,
        claim=ClaimCheck(name="big.txn", sha256="a" * 64),
        traceparent="00-1-2-01",
    )


def test_headers_that_come_again_are_not_decoded_again_unless_they_are_large() -> None:
    headers = (("producer", b"p"), ("app-id", b"stream"), ("app-version", b"7"))
    assert decode_envelope(headers) is decode_envelope(list(headers))
    large = (*headers, ("unknown", b"x" * 1024))
    assert decode_envelope(large) == decode_envelope(headers)
    assert decode_envelope(large) is not decode_envelope(large)


def test_of_a_header_that_stands_twice_the_last_counts() -> None:
    assert decode_envelope([("attempt", b"1"), ("attempt", b"3")]).attempt == 3


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (headers(app_id="a b", app_version="1"), "app-id"),
        (headers(app_id="", app_version="1"), "app-id"),
        (headers(app_id="a" * 129, app_version="1"), "app-id"),
        (headers(app_id="a"), "app-version"),
        (headers(app_id="a", app_version="-1"), "app-version"),
        (headers(app_id="a", app_version=str(2**53)), "app-version"),
        (headers(app_id="a", app_version="1.5"), "app-version"),
        (headers(app_version="1"), "app-version"),
        (headers(app_after="1"), "app-after"),
        (headers(app_id="a", app_version="2", app_after="2"), "app-after"),
        (headers(app_id="a", app_version="2", app_after="none"), "app-after"),
        (headers(app_run="q"), "app-run"),
        (headers(create_only="yes"), "create-only"),
        (headers(create_options="{"), "create-options"),
        (headers(create_options="[]"), "create-options"),
        (headers(read_uuid=UUID.upper()), "read-uuid"),
        (headers(retry_of="x"), "retry-of"),
        (headers(deadline_ms="soon"), "deadline-ms"),
        (headers(deadline_ms="²"), "deadline-ms"),
        (headers(attempt="0"), "attempt"),
        (headers(transaction_file="../x", transaction_sha256="a" * 64), "transaction-file"),
        (headers(transaction_file="a\\b", transaction_sha256="a" * 64), "transaction-file"),
        (headers(transaction_file=".hidden", transaction_sha256="a" * 64), "transaction-file"),
        (headers(transaction_file="", transaction_sha256="a" * 64), "transaction-file"),
        (headers(transaction_file="a\0", transaction_sha256="a" * 64), "transaction-file"),
        (headers(transaction_file="x"), "transaction-sha256"),
        (headers(transaction_file="x", transaction_sha256="A" * 64), "transaction-sha256"),
        ([("dataset", b"\xff\xfe")], "dataset"),
    ],
)
def test_a_wrong_header_is_named(given: list[tuple[str, bytes]], name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"header {name} is") as caught:
        decode_envelope(given)
    assert caught.value.code == "header_invalid"


@pytest.mark.parametrize("name", sorted(HEADER_BYTES_MAX))
def test_a_header_has_a_bound_before_anything_is_made_of_it(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"header {name} has {HEADER_BYTES_MAX[name] + 1} bytes") as caught:
        decode_envelope([(name, b"%" * (HEADER_BYTES_MAX[name] + 1))])
    assert (caught.value.code, len(str(caught.value))) < ("header_invalid", 200)


def test_who_asked_of_huge_headers_is_cut() -> None:
    who = who_asked([("producer", "é".encode() * 500_000), ("traceparent", b"0" * 900_000)])
    assert (who.producer, who.traceparent) == ("é" * 128, "0" * 256)
    assert decode_envelope([("producer", "é".encode() * 1500)]).producer == "é" * 128


@pytest.mark.parametrize(
    "value", [b"", b"p" * 256, b"p" * 255 + "é".encode(), "\U0001f600".encode() * 1024, b"\xff" * 999]
)
def test_what_is_copied_has_a_bound_in_bytes(value: bytes) -> None:
    copied = who_asked([("producer", value), ("traceparent", value)])
    assert copied.producer == copied.traceparent
    assert len(copied.producer.encode()) <= COPIED_BYTES_MAX
    assert value[: COPIED_BYTES_MAX - 3].decode("utf-8", "ignore") in copied.producer.replace("\ufffd", "")


def test_a_run_is_never_cut() -> None:
    """Two runs whose names begin alike are two runs."""
    run = "\U0001f600" * 256
    headers = [("app-id", b"a"), ("app-version", b"1")]
    app = decode_envelope([*headers, ("app-run", run.encode())]).app
    assert app is not None
    assert app.run == run
    with pytest.raises(InvalidRequest, match="header app-run has 1025 bytes"):
        decode_envelope([*headers, ("app-run", run.encode() + b"x")])


@pytest.mark.parametrize("partition", [b"", b"-1", b"x", b"9" * 10, b"1.5"])
def test_a_partition_that_is_no_number_is_partition_0(partition: bytes) -> None:
    assert who_asked([("outcome-partition", partition)]).outcome_partition == 0


def test_the_attempt_is_known_of_a_record_that_is_wrong_elsewhere() -> None:
    assert [who_asked([("attempt", value)]).attempt for value in (b"3", b"0", b"x", b"9" * 20)] == [3, 1, 1, 1]


def test_who_asked_is_known_of_a_record_that_is_wrong_elsewhere() -> None:
    who = who_asked([("producer", b"\xffp"), ("outcome-partition", b"4"), ("app-id", b"!")])
    assert (who.producer, who.outcome_partition) == ("�p", 4)


def test_a_transaction_is_decoded_from_its_bytes() -> None:
    transaction = Transaction(uuid=UUID, read_version=3)
    body = transaction.SerializeToString()
    assert decode_transaction(body, bytes_max=1000) == transaction


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "record_empty"),
        (b"x" * 1001, "record_too_large"),
        (b"\xff\xff\xff", "record_undecodable"),
        (Transaction(uuid=UUID, read_version=3).SerializeToString()[:-9], "record_undecodable"),
        (Transaction(uuid=UUID.upper()).SerializeToString(), "uuid_invalid"),
        (Transaction(read_version=1).SerializeToString(), "uuid_invalid"),
        (b'{"json": 1}', "record_undecodable"),
    ],
)
def test_what_is_no_transaction_is_refused_with_its_reason(body: bytes, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_transaction(body, bytes_max=1000)
    assert caught.value.code == code


def test_a_request_names_its_operation() -> None:
    transaction = Transaction(uuid=UUID)
    request = Request(offset=1, envelope=Envelope(), transaction=transaction, size=3)
    assert (request.uuid, request.operation) == (UUID, "")
    transaction.restore.version = 2
    assert request.operation == "restore"


def test_a_records_fingerprint_covers_key_and_value() -> None:
    record = Record(offset=1, value=b"v", key=b"k")
    assert record_sha256(record) == record_sha256(Record(offset=9, value=b"v", key=b"k", headers=[("a", b"b")]))
    others = {record_sha256(Record(offset=1, value=v, key=k)) for v, k in [(b"v", None), (b"v", b""), (b"w", b"k")]}
    assert len(others | {record_sha256(record)}) == 4


def test_a_records_size_counts_key_and_headers() -> None:
    assert record_size(Record(offset=1, value=b"abc", key=b"k", headers=[("ab", b"cd")])) == 8 + 160
    assert record_size(Record(offset=1, value=b"abc")) == 3
    assert record_size(Record(offset=1, value=b"abc", headers=[("\N{REPLACEMENT CHARACTER}", b"cd")])) == 8 + 160


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3a://bucket/a/b/", "s3://bucket/a/b"),
        ("S3N://bucket/a%20b", "s3://bucket/a b"),
        ("file:///data/t", "/data/t/"),
        ("file:/data/t", "/data/t"),
        ("/data//t", "/data/t"),
        ("file:///", "/"),
        ("s3://bucket/", "s3://bucket"),
        ("/a/./b", "/a/b"),
        ("/a/x/../b", "/a/b"),
        ("/../a", "/a"),
        ("file:///a/./x/../b/", "/a/b"),
        ("./a", "a"),
        ("s3://bucket/./a/x/%2e%2e/b", "s3://bucket/a/b"),
        ("s3a://bucket/..", "s3://bucket"),
        ("s3+ddb://b/x/../t?ddbTableName=m", "s3+ddb://b/t?ddbTableName=m"),
        ("file://server/x/../t", "file://server/t"),
    ],
)
def test_one_table_has_many_spellings(one: str, other: str) -> None:
    assert canonical_uri(one) == canonical_uri(other)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://[bucket]/x",
        "s3://[",
        "http://[::1/x",
        "s3://b:port/x",
        "://",
        ":",
        "",
        "s3://\u2100/x",
        "file://[/x",
        "a\0b",
        ".",
        "../..",
        "s3://../..",
        "s3://b/%2e",
        "file://./..",
    ],
)
def test_any_text_has_a_spelling(uri: str) -> None:
    assert canonical_uri(canonical_uri(uri)) == canonical_uri(uri)
    assert not names_same_table(uri, served="s3://bucket/x", aliases=())


def test_another_machines_file_is_not_ours() -> None:
    assert canonical_uri("file://localhost/data/t") == canonical_uri("/data/t")
    assert canonical_uri("file://server/data/t") != canonical_uri("/data/t")


@pytest.mark.parametrize("uri", ["s3://b/t", "/data/t", "file:///data/t", "s3+ddb://b/t?ddbTableName=x", "/"])
def test_a_base_is_spelt_as_a_table_is(uri: str) -> None:
    assert canonical_base(uri) == canonical_uri(uri)


@pytest.mark.parametrize(
    "uri",
    ["", "a", "a/b", "s3://b/../c", "s3://b/%2e%2e/c", "s3://../c", "/a/./b", "/a\\b", "/a\tb", "/a ", "file://a/.."],
)
def test_a_base_means_one_place(uri: str) -> None:
    assert canonical_base(uri) is None


def test_below_a_base_is_the_base_and_what_is_in_it() -> None:
    assert is_below("s3://b/t", "s3a://b/t/")
    assert is_below("s3://b/t/x", "s3://b/t")
    assert is_below("/x", "/")
    assert not is_below("s3://b/tx", "s3://b/t")


def test_two_tables_are_two() -> None:
    assert canonical_uri("/a/..b") != canonical_uri("/b")
    assert canonical_uri("/a/b.") != canonical_uri("/a/b")
    assert canonical_uri("s3://a/t") != canonical_uri("s3://b/t")
    assert canonical_uri("s3+ddb://a/t?ddbTableName=x") != canonical_uri("s3+ddb://a/t?ddbTableName=y")


def test_an_alias_is_another_name_of_the_table() -> None:
    assert names_same_table("s3://old/t", served="s3://new/t", aliases=("s3a://old/t/",))
    assert not names_same_table("s3://other/t", served="s3://new/t", aliases=("s3a://old/t/",))


def test_the_objects_of_a_table_with_a_manifest_store_mean_it_too() -> None:
    served = "s3+ddb://b/t%20t/?ddbTableName=m"
    for meant in ("s3+ddb://b/t t?ddbTableName=m", "s3+ddb://b/t%20t", "s3a://b/t%20t"):
        assert names_same_table(meant, served=served, aliases=())
    for meant in ("s3+ddb://b/t t?ddbTableName=other", "s3://b/t", "s3://c/t t"):
        assert not names_same_table(meant, served=served, aliases=())
    assert not names_same_table(served, served="s3://b/t t", aliases=())


@pytest.mark.parametrize(
    "uri",
    [
        "/data/events.lance",
        "events.lance/",
        "file:///data/events",
        "s3a://bucket/lake/events.lance?ddbTableName=versions",
    ],
)
def test_a_queue_is_named_after_the_last_part_of_its_tables_uri(uri: str) -> None:
    assert dataset_name(uri) == "events"
