"""Change events: what they say of a version, and where a topic's events end."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from committerd.lance.format.fragment_list import pack_fragments
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.versions.difference import Difference
from committerd.queue.change_event import (
    CONTENT_TYPE,
    PRODUCERS_MAX,
    TEXT_CHARS_MAX,
    TRANSACTIONS_MAX,
    ChangeEvent,
    EventSource,
    EventType,
    Missing,
    Told,
    committed_event,
    event_id,
    missed_event,
    replaced_event,
    told_by,
)
from committerd.queue.outcomes import encode_settled
from committerd_common.messages import DataFragment, IndexSection, Manifest, Member, Transaction

SOURCE = EventSource(dataset="events", uri="s3://lake/events.lance")
CONTRACT = (
    (Path(__file__).resolve().parents[2] / "docs/wire-contract.md").read_text().partition("\n## Change event\n")[2]
)
UUID = "2c9b1c0e-63a4-4d55-9ef5-0f6dd4fb0a6e"
NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
RECORD_BYTES_MAX = 64 * 1024


def version(number: int, transaction: Transaction | None = None, **manifest: Any) -> ManifestFile:
    outline = Manifest(version=number, **manifest)
    outline.timestamp.seconds, outline.timestamp.nanos = 1_795_780_000, 123_000
    return ManifestFile(
        outline=outline,
        fragments=pack_fragments([DataFragment(id=0, physical_rows=4)]),
        index_section=IndexSection(),
        transaction=transaction,
        transaction_bytes=None,
    )


def append(uuid: str, *members: Member) -> Transaction:
    """An Append; with members it is one of the queue."""
    made = Transaction(uuid=uuid, read_version=6)
    made.append.SetInParent()
    if members:
        made.transaction_properties.update(encode_settled(members, (), topic_id="t"))
    return made


def content(event: ChangeEvent) -> dict[str, Any]:
    assert event.publication.headers == (CONTENT_TYPE,)
    assert event.publication.key == b"events"
    assert len(event.publication.value) < RECORD_BYTES_MAX
    found: dict[str, Any] = json.loads(event.publication.value)
    assert found["type"] == event.type
    return found


def told(event: ChangeEvent) -> Told | None:
    return told_by(event.publication.value)


def test_a_version_of_the_queue_is_told_as_the_wire_contract_shows_it() -> None:
    transaction = append(
        UUID,
        Member(offset=3, uuid="a", producer="spark", operation="append"),
        Member(offset=4, uuid="b", producer="crm", operation="update"),
        Member(offset=5, uuid="c", producer="spark", operation="append"),
    )
    file = version(7, transaction)
    event = committed_event(SOURCE, file, transaction, Difference(1, 2, 30, None))
    (example,) = re.findall(r"^```json\n(.*?)^```", CONTRACT, re.MULTILINE | re.DOTALL)
    assert content(event) == json.loads(example)
    assert told(event) == Told(7, event_id(file, transaction)) == Told(7, f"7-{UUID}")


def test_the_wire_contract_names_every_field() -> None:
    restore = Transaction(uuid="u9", read_version=8)
    restore.restore.version = 3
    every = [
        committed_event(SOURCE, version(9, restore), restore, None),
        missed_event(SOURCE, 1, 2, Missing.GONE, now=NOW),
        replaced_event(SOURCE, Told(1, ""), 1, now=NOW),
    ]
    rows = "".join(line.split("|")[1] for line in CONTRACT.splitlines() if line.startswith("|"))
    assert {name for event in every for name in content(event)["data"]} <= set(re.findall(r"`(\w+)`", rows))
    for name in (*EventType, *Missing):
        assert f"`{name}`" in CONTRACT


def test_a_place_is_a_uri() -> None:
    event = committed_event(EventSource(dataset="events", uri="/lake/new table.lance"), version(1), None, None)
    assert content(event)["source"] == "/lake/new%20table.lance"


def test_lists_are_cut_and_counted() -> None:
    members = [Member(offset=n, uuid=f"{n:036}", producer=f"{n:06}" + "ä" * 900) for n in range(1_000)]
    transaction = append("u7", *members)
    data = content(committed_event(SOURCE, version(7, transaction), transaction, None))["data"]
    assert (len(data["transactions"]), data["transaction_count"]) == (TRANSACTIONS_MAX, 1_000)
    assert (len(data["producers"]), data["producer_count"]) == (PRODUCERS_MAX, 1_000)
    assert {len(one) for one in data["producers"]} == {TEXT_CHARS_MAX}
    assert data["operations"] == ["append"]
    assert [data[name] for name in ("fragments_added", "rows_added")] == [None, None]


def test_versions_of_other_writers() -> None:
    long = append("u" * 100_000)
    assert content(committed_event(SOURCE, version(7, long), long, None))["data"]["uuid"] == "u" * TEXT_CHARS_MAX
    foreign, restore, bare = append("u8"), Transaction(uuid="u9", read_version=8), Transaction(read_version=9)
    restore.restore.version = 3
    data = content(committed_event(SOURCE, version(8, foreign, branch="dev"), foreign, None))["data"]
    assert (data["through_queue"], data["transactions"], data["branch"]) == (False, ["u8"], "dev")
    data = content(committed_event(SOURCE, version(9, restore), restore, None))["data"]
    assert (data["operations"], data["restored_version"]) == (["restore"], 3)
    for unreadable in (bare, None):  # the id is made of the version's time
        event = committed_event(SOURCE, version(10, unreadable), unreadable, None)
        assert content(event)["id"] == "10-1795780000000123000"
        data = content(event)["data"]
        assert (data["operations"], data["transactions"], data["transaction_count"]) == (["unknown"], [], 0)


@pytest.mark.parametrize("seconds", [-1, 253_402_300_800])
def test_a_time_that_nobody_can_write_is_left_out(seconds: int) -> None:
    file = version(7)
    file.outline.timestamp.seconds = seconds
    assert "time" not in content(committed_event(SOURCE, file, None, None))


def test_what_has_no_event_is_said() -> None:
    missed = missed_event(SOURCE, 4, 9, Missing.GONE, now=NOW)
    found = content(missed)
    assert found["data"] == {"dataset": "events", "first": 4, "last": 9, "reason": "gone"}
    assert (found["time"], told(missed)) == ("2026-11-27T12:00:00+00:00", Told(9, ""))
    replaced = replaced_event(SOURCE, Told(7, "7-u7"), 2, now=NOW)
    assert content(replaced)["data"] == {
        "dataset": "events",
        "told_version": 7,
        "told_id": "7-u7",
        "latest_version": 2,
    }
    assert told(replaced) == Told(0, "")
    ids = [content(replaced_event(SOURCE, one, 2, now=NOW))["id"] for one in (Told(7, "7-u7"), Told(7, ""))]
    assert ids == ["7-u7-replaced", "7-replaced"]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"7",
        b"[]",
        b"[" * 100_000,
        b"{}",
        b'{"type": "other", "data": {}}',
        b'{"type": "committerd.version.committed", "id": "7-u"}',
        b'{"type": "committerd.version.committed", "id": "7-u", "data": null}',
        b'{"type": "committerd.versions.missed", "data": {"last": "x"}}',
    ],
)
def test_records_of_others_say_nothing(value: bytes) -> None:
    assert told_by(value) is None


def test_every_type_of_event_says_where_the_topic_ends() -> None:
    events = [
        committed_event(SOURCE, version(1), None, Difference(0, 0, 0, 0)),
        missed_event(SOURCE, 1, 1, Missing.UNREADABLE, now=NOW),
        replaced_event(SOURCE, Told(1, ""), 1, now=NOW),
    ]
    assert {event.type for event in events} == set(EventType)
    assert None not in map(told, events)
