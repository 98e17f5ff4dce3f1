"""A table's configuration and metadata have a bound: each version holds them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from committerd.errors import InvalidRequest
from committerd.lance.checks.texts import require_schema_metadata
from committerd.lance.transactions.build import build
from committerd.lance.versions import metadata
from committerd.lance.versions.metadata import BYTES_MAX, ENTRIES_MAX, require_little_metadata, require_room
from committerd_common.messages import Field, Manifest, Transaction
from tests.lance import samples

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


def raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except InvalidRequest:
        return True
    return False


@pytest.mark.parametrize(("name", "most"), [("ENTRIES_MAX", 5), ("BYTES_MAX", 12)])
def test_what_an_update_makes_is_known_before_it_is_built(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random updates: what is found without building is what is found in the version that is built."""
    monkeypatch.setattr(metadata, name, most)
    random = Random(3)
    keys = ("a", "b", "c", "committerd.app.x")
    found = [0, 0]
    for _ in range(1500):
        before = samples.manifest()
        change = Transaction.UpdateConfig()
        maps: list[tuple[Any, Transaction.UpdateMap]] = [
            (before.config, change.config_updates),
            (before.table_metadata, change.table_metadata_updates),
            (before.schema_metadata, change.schema_metadata_updates),
            (before.fields[0].metadata, change.field_metadata_updates[before.fields[0].id]),
        ]
        for texts, updates in maps:
            for key in random.sample(keys, random.randint(0, 3)):
                texts[key] = "v" if texts is before.config or texts is before.table_metadata else b"v"
            updates.replace = random.random() < 0.2
            for key in random.choices(keys, k=random.randint(0, 2)):
                updates.update_entries.add(key=key, value=random.choice(("", "w", "ww", "é")))
                if random.random() < 0.4:
                    updates.update_entries[-1].ClearField("value")
        made = build(samples.table(before), samples.transaction(update_config=change), samples.GIVEN).packed[0]
        is_refused = raises(partial(require_little_metadata, before, made))
        assert raises(partial(require_room, before, change)) is is_refused
        found[is_refused] += 1
    assert min(found) > 100


def test_updates_of_fields_that_are_not_there_have_no_weight() -> None:
    change = Transaction.UpdateConfig()
    change.field_metadata_updates[7].update_entries.extend(
        Transaction.UpdateMapEntry(key=key, value="") for key in MANY
    )
    require_room(samples.manifest(), change)


def test_the_schema_of_a_data_file_has_little_metadata() -> None:
    most = {str(number): b"x" * 2**17 for number in range(8)}
    require_schema_metadata({})
    require_schema_metadata(most)
    with pytest.raises(InvalidRequest, match="the schema of its data file has 1048577 bytes of metadata") as refused:
        require_schema_metadata(most | {"one": b"x"})
    assert refused.value.code == "text_invalid"
    with pytest.raises(InvalidRequest, match="the schema of its data file"):
        require_schema_metadata({"a\0b": b"x"})
