"""`committerd status` on a table whose old versions are damaged, or hold data that no writer should write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from committerd.commands.status import _maintenance, _table_fields
from committerd.commands.status.table import TableSummary, look_at_table
from committerd.errors import CorruptTable
from committerd.lance.format.manifest_file import encode
from committerd.queue.outcomes import encode_settled
from committerd.queue.port import TopicIdentity
from committerd.queue.position import PAUSED_KEY, Pause, encode_metadata, start_of
from committerd.stores.local import LocalStore
from committerd.stores.port import Tail
from committerd.table.versions import Table
from committerd_common.messages import Manifest, Refusal, Transaction
from committerd_common.paths import NamingScheme, manifest_key
from tests.simulation.loop import run_virtual
from tests.simulation.store import Bucket, FakeStore
from tests.table.putting import put_version

PAUSE = Pause(reason="a \x1b[2Jbackup", since_ms=0, who="ann\n")


def write(folder: Path, version: int, ours: str = "", refusals: Sequence[Refusal] = (), /, **metadata: str) -> Path:
    manifest = Manifest(version=version)
    manifest.table_metadata.update({key.replace("__", "."): value for key, value in metadata.items()})
    transaction = Transaction(uuid=str(version), read_version=version - 1)
    transaction.append.SetInParent()
    if ours == "ours":
        transaction.transaction_properties.update(encode_settled((), refusals, topic_id="i"))
    path = folder / manifest_key(version, NamingScheme.V2)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode(manifest, (), transaction))
    return path


async def look(folder: Path) -> TableSummary:
    return await look_at_table(Table(LocalStore(folder)), 10)


async def test_a_damaged_old_version_does_not_hide_the_others(tmp_path: Path) -> None:
    _, damaged, latest = (write(tmp_path, version) for version in (1, 2, 3))
    damaged.write_bytes(b"nothing of the kind")
    found = await look(tmp_path)
    assert [one.version for one in found.versions] == [3, 1]
    (told,) = found.damaged
    assert "version 2 is damaged" in told
    latest.write_bytes(b"nothing of the kind")
    with pytest.raises(CorruptTable):
        await look(tmp_path)


async def test_a_pause_is_shown_without_a_committer_and_however_many_versions_of_others_follow(tmp_path: Path) -> None:
    paused = encode_metadata(start_of(TopicIdentity(cluster_id="c", topic="t", topic_id="i"), 0), {}, PAUSE)
    write(tmp_path, 1, "ours", **paused)
    for version in range(2, 14):
        write(tmp_path, version)
    found = await look(tmp_path)
    assert (len(found.versions), found.pause) == (10, PAUSE)
    shown = dict(_table_fields(found, 0))["paused"]
    assert (
        shown
        == r"the queue is paused since 1970-01-01T00:00:00Z by ann\n: a \x1b[2Jbackup. `committerd resume` ends that"
    )
    write(tmp_path, 14, "ours", **{key: text for key, text in paused.items() if key != PAUSED_KEY})
    assert (await look(tmp_path)).pause is None


async def test_a_status_that_only_a_later_version_knows_is_a_number(tmp_path: Path) -> None:
    refusal = Refusal(reason="set_aside")
    refusal.status = 99  # type: ignore[assignment]
    write(tmp_path, 1, "ours", [refusal])
    assert (await look(tmp_path)).outcomes() == {("99", "set_aside"): 1}


async def test_it_says_when_maintenance_worked_on_what(tmp_path: Path) -> None:
    write(tmp_path, 1)
    latest = tmp_path / "_maintenance/latest.json"
    latest.parent.mkdir()
    hour_ms = 3_600_000
    for rewrite, shown in (({"rewrite_ms": 0}, "fragments was 3.0 h ago"), ({}, "fragments was unknown")):
        figures = {"time_ms": 2 * hour_ms, "index_ms": hour_ms, "fragments": 7, "unindexed_rows": 8} | rewrite
        latest.write_text(json.dumps(figures | {"text": "x"}))
        found = await look(tmp_path)
        assert found.maintenance == figures
        text = _maintenance(found, 3 * hour_ms)
        assert text.startswith("cleanup 1.0 h ago: 7 fragments, 8 unindexed rows")
        assert shown in text
        assert text.endswith("on indices 2.0 h ago")
    for body in ("[]", "{", '{"time_ms": "1"}', '{"time_ms": 1}' + 65536 * " "):
        latest.write_text(body)
        assert (await look(tmp_path)).maintenance is None


@pytest.mark.parametrize("garbage", [{"committerd__position": "{}"}, {"committerd__format": "9"}])
async def test_what_an_old_foreign_version_says_of_the_queue_is_left_out(
    tmp_path: Path, garbage: dict[str, str]
) -> None:
    write(tmp_path, 1, **garbage)
    write(tmp_path, 2)
    found = await look(tmp_path)
    assert [one.version for one in found.versions] == [2, 1]
    assert found.position is None
    assert not found.damaged


class Distant(FakeStore):
    """Each request takes a second of virtual time."""

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        await anyio.sleep(1)
        return await super().get_range(key, start, end)

    async def get(self, key: str) -> bytes | None:
        await anyio.sleep(1)
        return await super().get(key)

    async def get_tail(self, key: str, size: int) -> Tail | None:
        await anyio.sleep(1)
        return await super().get_tail(key, size)

    async def head(self, key: str) -> int | None:
        await anyio.sleep(1)
        return await super().head(key)

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        await anyio.sleep(1)
        return await super().list(prefix, start_after=start_after, limit=limit)


def test_few_requests_wait_for_each_other_on_a_long_history() -> None:
    """One listing, three rounds that search the lowest version, and four that search the newest one of the queue."""
    bucket, last = Bucket(), 10_000
    position = start_of(TopicIdentity(cluster_id="c", topic="t", topic_id="i"), 7)
    for version in range(1, last + 1):
        carried = encode_metadata(position, {}) if version >= 40 else {}
        put_version(bucket, version, carried, ours=version <= 40)

    async def seconds() -> float:
        began = anyio.current_time()
        found = await look_at_table(Table(Distant(bucket)), 10)
        assert (len(found.versions), found.versions_in_all, found.position) == (10, last, position)
        return anyio.current_time() - began

    assert run_virtual(seconds) <= 8
