"""What follows from the URI of a table: the name of its queue, and its folder."""

from __future__ import annotations

import pytest

from committerd_common.uris import lance_uri, local_folder, may_be_one_table, queue_name


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("/data/events.lance", "events"),
        ("file:///data/events.lance/", "events"),
        ("s3a://bucket/lake/users", "users"),
        ("s3+ddb://bucket/lake/users.lance?ddbTableName=versions", "users"),
    ],
)
def test_the_queue_of_a_table_has_the_name_of_its_folder(uri: str, name: str) -> None:
    assert queue_name(uri) == name


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("/data/events.lance/", "/data/events.lance"),
        ("file:///data/events.lance", "/data/events.lance"),
        ("file-object-store:///data/events.lance", "/data/events.lance"),
        ("s3://bucket/events.lance", None),
        ("s3+ddb://bucket/events.lance?ddbTableName=versions", None),
    ],
)
def test_only_a_table_on_a_local_disk_has_a_folder(uri: str, folder: str | None) -> None:
    assert local_folder(uri) == folder


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("s3a://b/t%20t?x=1", "s3://b/t%20t?x=1"),
        ("azure://c/t", "az://c/t"),
        ("S3N://b/t", "s3://b/t"),
        ("s3://b/t", "s3://b/t"),
        ("s3+ddb://b/t?ddbTableName=m", "s3+ddb://b/t?ddbTableName=m"),
        ("/lake/s3a", "/lake/s3a"),
        ("s3a", "s3a"),
    ],
)
def test_pylance_knows_one_name_of_s3(given: str, expected: str) -> None:
    assert lance_uri(given) == expected


@pytest.mark.parametrize(
    ("uri", "other", "may"),
    [
        ("/mnt/lake/events.lance", "/data/events.lance", True),
        ("/mnt/lake/events.lance", "s3://lake/events.lance", True),
        ("s3://point-s3alias/events.lance", "s3://lake/events.lance/", True),
        ("s3://lake/old/events.lance", "s3+ddb://lake/events.lance?ddbTableName=versions", False),
        ("s3://lake/users.lance", "/data/events.lance", False),
        ("/data/users.lance", "/data/events.lance", False),
    ],
)
def test_two_names_may_be_of_one_table_if_its_folder_has_the_same_name(uri: str, other: str, may: bool) -> None:
    assert may_be_one_table(uri, other) is may_be_one_table(other, uri) is may
