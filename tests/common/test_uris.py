"""The default name of a table's queue."""

from __future__ import annotations

import pytest

from committerd_common.uris import queue_name


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
