"""A table's configuration and metadata have a bound: each version holds them."""

from __future__ import annotations

from typing import Any

import pytest

from committerd.errors import InvalidRequest
from committerd.lance.checks.texts import require_schema_metadata
from committerd.lance.versions.metadata import BYTES_MAX, ENTRIES_MAX, require_little_metadata
from committerd_common.messages import Field, Manifest

MANY = {str(number): "" for number in range(ENTRIES_MAX + 1)}
LARGE = {"k": "x" * BYTES_MAX}
WITH: dict[str, Any] = {
    "config": lambda texts: Manifest(config=texts),
    "table": lambda texts: Manifest(table_metadata=texts),
    "schema": lambda texts: Manifest(schema_metadata={key: value.encode() for key, value in texts.items()}),
    "field": lambda texts: Manifest(
        fields=[Field(name="a"), Field(metadata={key: value.encode() for key, value in texts.items()})]
    ),
}


@pytest.mark.parametrize("with_texts", WITH.values(), ids=WITH)
@pytest.mark.parametrize("texts", [MANY, LARGE], ids=["many", "large"])
def test_too_much_of_it_is_refused(with_texts: Any, texts: dict[str, str]) -> None:
    for before in (None, Manifest(), with_texts({"a": "b"})):
        with pytest.raises(InvalidRequest) as refused:
            require_little_metadata(before, with_texts(texts))
        assert refused.value.code == "metadata_too_large"


@pytest.mark.parametrize("texts", [MANY, LARGE], ids=["many", "large"])
def test_a_table_that_has_more_already_may_keep_it(texts: dict[str, str]) -> None:
    require_little_metadata(Manifest(config=texts), Manifest(config=texts))
    with pytest.raises(InvalidRequest):
        require_little_metadata(Manifest(config=texts), Manifest(config=texts | {"one more": "x"}))


def test_entries_of_the_queue_do_not_count() -> None:
    require_little_metadata(None, Manifest(table_metadata={f"committerd.app.{n}": "{}" for n in range(30_000)}))
    require_little_metadata(None, Manifest(config={"a": "b"}))


def test_the_schema_of_a_data_file_has_little_metadata() -> None:
    most = {str(number): b"x" * 2**17 for number in range(8)}
    require_schema_metadata({})
    require_schema_metadata(most)
    with pytest.raises(InvalidRequest, match="the schema of its data file has 1048577 bytes of metadata") as refused:
        require_schema_metadata(most | {"one": b"x"})
    assert refused.value.code == "text_invalid"
    with pytest.raises(InvalidRequest, match="the schema of its data file"):
        require_schema_metadata({"a\0b": b"x"})
