"""Cleanup: what nobody needs goes, and what somebody needs stays, on tables that pylance has written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import lance
import pytest

from bench.long_history import write
from committerd.commands.system import sources
from committerd.committer import operate
from committerd.committer.loading import Loading, load
from committerd.errors import CommitterError, CorruptTable, RefusedToRun, StoreUnavailable, UnsupportedTable
from committerd.lance.format.manifest_file import decode, encode
from committerd.maintenance import bodies
from committerd.maintenance import cleaning as cleaning_module
from committerd.maintenance import survey as survey_module
from committerd.maintenance.cleaning import Cleanup
from committerd.maintenance.files import File, GracePeriod, RemovalReason, why
from committerd.maintenance.lists import Lists
from committerd.maintenance.passed_over import PassedOver
from committerd.maintenance.versions import KeepReason, choose
from committerd.queue.port import TopicIdentity
from committerd.queue.position import Pause, start_of
from committerd.stores.local import LocalStore
from committerd.stores.port import Tail, TailOrError
from committerd.table import manifests as manifests_module
from committerd.table.versions import Table
from committerd_client import staging
from committerd_common.messages import DeletionFile, Refusal, Status, Transaction
from tests.maintenance.scene import Scene

pytestmark = pytest.mark.pylance

_BOUND = 1 << 20
"""Bytes of manifests in memory."""


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Five versions: two appends, a delete, a compaction of all of it."""
    made = Scene(tmp_path)
    made.write(0)
    made.write(10, mode="append")
    made.write(20, mode="append").delete("id = 5")
    lance.dataset(made.uri).optimize.compact_files()
    assert made.versions() == [1, 2, 3, 4, 5, 6]
    return made


async def test_nothing_goes_within_an_hour(scene: Scene) -> None:
    found, cleaned = await scene.clean()
    assert (found.choice.removable, cleaned.files) == ((), 0)
    assert set(found.choice.kept.values()) == {KeepReason.COUNT, KeepReason.AGE}


async def test_old_versions_go_with_all_files_that_no_other_one_names(scene: Scene) -> None:
    scene.hours = 2
    found, cleaned = await scene.clean()
    assert found.choice.removable == (1, 2, 3, 4, 5)
    assert scene.read_all() == {6: 29}
    assert {name: len(scene.files(name)) for name in ("data", "_deletions", "_transactions")} == {
        "data": 1,
        "_deletions": 0,
        "_transactions": 1,
    }
    assert cleaned.versions == 5
    assert cleaned.by_reason == {RemovalReason.MANIFEST: 5, RemovalReason.VERSION: 3 + 1 + 5}
    assert cleaned.bytes == sum(one["bytes"] for one in scene.deleted) > 0
    assert (await scene.clean())[1].files == 0


async def test_what_is_deleted_is_written_down_and_kept_for_a_week(scene: Scene) -> None:
    scene.hours = 2
    await scene.clean()
    (name,) = [one for one in scene.files("_maintenance") if one.endswith(".jsonl")]
    run, *lines = map(json.loads, scene.get(f"_maintenance/{name}").splitlines())
    assert run["versions"] == [1, 2, 3, 4, 5]
    assert sorted(lines, key=str) == sorted(scene.deleted, key=str)
    assert [one["why"] for one in scene.deleted[:5]] == ["manifest"] * 5
    latest = json.loads(scene.get("_maintenance/latest.json"))
    assert (latest["version"], latest["versions_removed"]) == (6, 5)
    scene.hours += 7 * 24 + 1
    await scene.clean()
    assert scene.files("_maintenance") == {"latest.json", "clock"}


async def test_the_summary_keeps_when_other_steps_last_succeeded(scene: Scene) -> None:
    """A process that has just started does not know it. What is damaged or missing counts as unknown."""
    progress: list[tuple[int, int]] = []

    def new_cleaning() -> Cleanup:
        return scene.cleaning(progress=lambda cleaned, files: progress.append((cleaned.files, files)))

    scene.put("_maintenance/latest.json", b"{")
    for figures in ({"rewrite_ms": 5, "index_ms": 6, "fragments": 3}, {"rewrite_ms": 7}, {}):
        cleaning = new_cleaning()
        await cleaning.clean(await cleaning.look(), summary=figures)
    latest = json.loads(scene.get("_maintenance/latest.json"))
    assert (latest["rewrite_ms"], latest["index_ms"], "fragments" in latest) == (7, 6, False)
    assert progress == []
    scene.hours = 2
    cleaning = new_cleaning()
    cleaned = await cleaning.clean(await cleaning.look())
    assert progress == [(cleaned.files, cleaned.files)]


async def test_tags_branches_and_a_number_of_versions_stay_whole(scene: Scene) -> None:
    table = lance.dataset(scene.uri)
    table.tags.create("release", 2)
    table.create_branch("side", 3)
    scene.hours = 2
    found, _ = await scene.clean(keep_versions=2)
    assert found.choice.removable == (1, 4)
    assert (found.choice.kept[2], found.choice.kept[3]) == (KeepReason.TAG, KeepReason.BRANCH)
    assert scene.read_all() == {2: 20, 3: 30, 5: 29, 6: 29}
    assert lance.dataset(scene.uri).checkout_version(("side", None)).to_table().num_rows == 30


async def test_a_branch_of_a_branch_keeps_the_version_at_which_the_first_one_left(scene: Scene) -> None:
    first = lance.dataset(scene.uri).create_branch("first", 1)
    first.create_branch("first/second", ("first", None))
    scene.hours = 2
    await scene.clean()
    assert scene.read_all() == {1: 10, 6: 29}


async def test_what_a_waiting_record_needs_stays(scene: Scene) -> None:
    old = lance.dataset(scene.uri, version=4)
    append = scene.staged_append(100)
    scene.topic.add(append)
    scene.topic.add(staging.delete(old, "id = 7"))
    scene.topic.add(b"no transaction")
    scene.hours = 24 * 10
    found, _ = await scene.clean()
    assert found.choice.removable == (1, 2, 3)
    assert found.choice.kept[4] == KeepReason.WAITING
    assert (found.oldest_read_version, found.waiting_records) == (4, 3)
    assert scene.read_all() == {4: 29, 5: 29, 6: 29}
    assert append.append.fragments[0].files[0].path in scene.files("data")
    assert len(scene.files("_deletions")) == 2  # that of version 4, and the staged one


async def test_a_restore_that_waits_keeps_the_version_that_it_brings_back(scene: Scene) -> None:
    scene.topic.add(
        Transaction(
            uuid="0" * 8 + "-0000-4000-8000-000000000000", read_version=6, restore=Transaction.Restore(version=3)
        )
    )
    scene.hours = 2
    found, _ = await scene.clean()
    assert found.choice.removable == (1, 2)


async def test_files_that_nothing_names_go_when_they_are_old_enough(scene: Scene) -> None:
    abandoned = scene.staged_append(100).append.fragments[0].files[0].path
    for name in (
        "_transactions/claim-0123.txn",
        "_versions/.tmp-17",
        "data/.tmp-3",
        "data/x.lance#1",
        "data/notes.txt",
    ):
        scene.put(name)
    scene.put("_indices/7d2f7a8e-7b7c-4d57-9c39-4b4f8b4f6d11/page.lance")
    scene.hours = 23
    found, _ = await scene.clean()
    assert abandoned in scene.files("data")
    assert found.unneeded_bytes > 0
    scene.hours = 25
    _, cleaned = await scene.clean()
    assert cleaned.by_reason == {RemovalReason.UNNAMED: 3, RemovalReason.TEMPORARY: 3}
    assert scene.files("data") == {
        "notes.txt",
        *(file.path for one in lance.dataset(scene.uri).get_fragments() for file in one.data_files()),
    }
    assert not scene.files("_indices")
    assert scene.read_all() == {6: 29}


async def test_deletion_files_that_nothing_names_go_once_the_version_is_gone_that_their_writer_read(
    scene: Scene,
) -> None:
    """As those of Deletes and Updates that share a version, which has one file for all of them."""
    named = scene.files("_deletions")
    lance.dataset(scene.uri).tags.create("stays", 3)
    scene.put("_deletions/0-2-17.bin")
    scene.put("_deletions/0-2-18.arrow")
    stay = {"0-3-17.bin", "0-6-17.bin", "0-7-17.bin", "0-18446744073709551615-1.bin", "x-2-17.bin", "0-2-17.bin.bin"}
    for name in (*stay, "0-2-19.bin", "0-2-20.bin", "0-2-21.bin"):
        scene.put(f"_deletions/{name}")
    waits = Transaction(uuid=str(uuid4()), read_version=6)
    waits.delete.updated_fragments.add(
        id=0, deletion_file=DeletionFile(file_type=DeletionFile.BITMAP, read_version=2, id=19)
    )
    scene.topic.add(waits)
    scene.hours = 0.5
    await scene.clean()
    assert {"0-2-17.bin", "0-2-18.arrow"} <= scene.files("_deletions")
    scene.hours = 2
    scene.age("_deletions/0-2-20.bin", hours=-1.5)
    cleaning = scene.cleaning()
    found = await cleaning.look()
    waits.uuid, waits.delete.updated_fragments[0].deletion_file.id = str(uuid4()), 21
    scene.topic.add(waits)  # after the look
    cleaned = await cleaning.clean(found)
    assert cleaned.by_reason["unnamed"] == 2
    left = scene.files("_deletions")
    assert left - named == stay | {"0-2-19.bin", "0-2-20.bin", "0-2-21.bin"}
    assert lance.dataset(scene.uri, version=3).count_rows() == 30
    assert scene.read_all()


@pytest.mark.parametrize(
    ("hours_ago", "cut", "stays"),
    [(1, {}, True), (25, {}, False), (1, {"cut": True}, False), (1, {"dropped_bytes": 9}, False)],
)
async def test_the_files_of_a_dead_letter_stay_until_it_is_old(
    scene: Scene, hours_ago: float, cut: Any, stays: bool
) -> None:
    """And the claim check that it names, unless the letter lacks what a replay needs."""
    plain, claimed = scene.staged_append(100), scene.staged_append(200)
    name = "8e7c1f2a-1111-4222-8333-444455556666-0011223344556677.txn"
    scene.put(f"_transactions/{name}", claimed.SerializeToString())
    scene.hours = 48
    scene.write_letter(plain, hours_ago=hours_ago, **cut)
    scene.write_letter(
        b"", hours_ago=hours_ago, headers={"transaction-file": name, "transaction-sha256": "0" * 64}, **cut
    )
    scene.write_letter(b"\xff", hours_ago=hours_ago)
    await scene.clean()
    files = {one.append.fragments[0].files[0].path for one in (plain, claimed)}
    assert files & scene.files("data") == (files if stays else set())
    assert (name in scene.files("_transactions")) is stays


async def test_a_file_that_is_staged_again_stays(scene: Scene) -> None:
    append = scene.staged_append(100)
    scene.hours = 48
    cleaning = scene.cleaning()
    found = await cleaning.look()
    assert found.count(RemovalReason.UNNAMED)[0] == 1
    scene.topic.add(append)  # after the look, and before anything is deleted
    cleaned = await cleaning.clean(found)
    assert append.append.fragments[0].files[0].path in scene.files("data")
    assert RemovalReason.UNNAMED not in cleaned.by_reason


@pytest.mark.parametrize("step_max", [1000, 2])
async def test_a_tag_that_is_made_after_the_look_keeps_its_version(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, step_max: int
) -> None:
    """And the files of later steps."""
    monkeypatch.setattr(cleaning_module, "_STEP_MAX", step_max)
    scene.hours = 2
    cleaning = scene.cleaning()
    found = await cleaning.look()
    lance.dataset(scene.uri).tags.create("late", 4)
    await cleaning.clean(found)
    assert scene.read_all() == {4: 29, 6: 29}


async def test_a_tag_that_moves_keeps_the_old_version_once_more_and_the_new_one_from_then_on(scene: Scene) -> None:
    lance.dataset(scene.uri).tags.create("moves", 2)
    scene.hours = 2
    cleaning = scene.cleaning()
    found = await cleaning.look()
    lance.dataset(scene.uri).tags.update("moves", 4)
    await cleaning.clean(found)
    assert scene.read_all() == {2: 20, 4: 29, 6: 29}
    await scene.clean()
    assert scene.read_all() == {4: 29, 6: 29}


@pytest.mark.parametrize("name", ["late", "team/late"])
async def test_a_branch_that_is_made_after_the_look_keeps_its_version(scene: Scene, name: str) -> None:
    scene.hours = 2
    cleaning = scene.cleaning()
    found = await cleaning.look()
    lance.dataset(scene.uri).create_branch(name, 4)
    await cleaning.clean(found)
    await scene.clean()
    assert scene.read_all() == {4: 29, 6: 29}
    assert lance.dataset(scene.uri).checkout_version((name, None)).to_table().num_rows == 29


@pytest.mark.parametrize("versions", [2, 6, 9])
async def test_a_table_that_is_made_again_after_the_look_stays(scene: Scene, versions: int) -> None:
    """Its versions have the numbers of the old ones, and are as new as can be."""
    scene.hours = 2
    cleaning = scene.cleaning()
    found = await cleaning.look()
    shutil.rmtree(scene.uri)
    for number in range(versions):
        scene.write(10 * number, mode="append")
    before = scene.read_all()
    with pytest.raises(RefusedToRun, match="the table was deleted, recreated or") as raised:
        await cleaning.clean(found)
    assert raised.value.code == "table_gone"
    assert scene.read_all() == before


async def test_a_table_that_is_made_again_between_two_steps_stays(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that came meanwhile is checked as well."""
    monkeypatch.setattr(cleaning_module, "_STEP_MAX", 2)
    scene.hours = 2

    def make_again() -> None:
        shutil.rmtree(scene.uri)
        scene.write(0)
        scene.write(10, mode="append")

    steps: list[Callable[[], Any]] = [lambda: scene.write(30, mode="append"), make_again]
    cleaning = scene.cleaning(progress=lambda *_: steps.pop(0)())
    with pytest.raises(RefusedToRun, match="version 7 is no longer what it was"):
        await cleaning.clean(await cleaning.look())
    assert scene.read_all() == {1: 10, 2: 20}


async def test_old_names_of_manifests_may_change_after_the_look(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(0, enable_v2_manifest_paths=False)
    for number in range(1, 12):
        scene.write(10 * number, mode="append")
    scene.hours = 2
    cleaning = scene.cleaning()
    found = await cleaning.look()
    before = scene.read_all()
    table: Any = lance.dataset(scene.uri)
    table.migrate_manifest_paths_v2()
    with pytest.raises(RefusedToRun):
        await cleaning.clean(found)
    assert scene.read_all() == before
    assert (await scene.clean())[1].versions == 11
    assert scene.read_all() == {12: 120}


async def test_a_shallow_clone_is_cleaned_up_and_what_it_reads_of_its_source_stays(
    scene: Scene, tmp_path: Path
) -> None:
    lance.dataset(scene.uri).create_scalar_index("id", "BTREE")
    source = lance.dataset(scene.uri)
    there = scene.files("")
    scene.uri = str(tmp_path / "clone.lance")
    source.shallow_clone(scene.uri, source.version)
    scene.write(100, mode="append")
    lance.dataset(scene.uri).delete("id = 7")
    scene.write(200, mode="append")
    lance.dataset(scene.uri).optimize.compact_files()
    scene.hours = 2
    _, cleaned = await scene.clean()
    assert cleaned.versions > 3
    assert len(scene.versions()) == 1
    clone = lance.dataset(scene.uri)
    assert (clone.to_table().num_rows, clone.count_rows("id = 9"), clone.count_rows("id = 7")) == (48, 1, 0)
    scene.uri = source.uri
    assert scene.files("") == there
    assert source.to_table().num_rows == 29


async def test_the_file_of_a_claim_check_stays_while_its_record_waits(scene: Scene) -> None:
    append = scene.staged_append(100)
    name = "8e7c1f2a-1111-4222-8333-444455556666-0011223344556677.txn"
    scene.put(f"_transactions/{name}", append.SerializeToString())
    scene.topic.add(b"", {"transaction-file": name, "transaction-sha256": "0" * 64})
    scene.hours = 48
    await scene.clean()
    assert name in scene.files("_transactions")
    assert append.append.fragments[0].files[0].path in scene.files("data")


async def test_a_killed_run_is_finished_by_the_next_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.hours = 2
    cleaning = scene.cleaning()
    found = await cleaning.look()
    delete, calls = os.unlink, []

    def killed(path: str, **options: object) -> None:
        calls.append(path)
        if len(calls) > 7:
            raise OSError(errno.EIO, "killed")
        delete(path)

    monkeypatch.setattr(os, "unlink", killed)
    with pytest.raises(StoreUnavailable):
        await cleaning.clean(found)
    monkeypatch.undo()
    assert scene.read_all() == {6: 29}
    assert len(scene.files("data")) + len(scene.files("_deletions")) + len(scene.files("_transactions")) > 2
    _, cleaned = await scene.clean()
    assert set(cleaned.by_reason) == {RemovalReason.VERSION}
    assert len(scene.files("data")) + len(scene.files("_transactions")) == 2
    assert (await scene.clean())[1].files == 0


async def test_a_table_that_may_name_files_in_an_unknown_way_is_left_alone(scene: Scene) -> None:
    key = f"_versions/{2**64 - 1 - 3}.manifest"
    file = decode(scene.get(key))
    manifest = file.manifest
    manifest.reader_feature_flags |= 1 << 20
    assert file.transaction is not None
    scene.put(key, encode(manifest, file.indices, file.transaction))
    scene.hours = 2
    with pytest.raises(UnsupportedTable, match="version 3 can't be cleaned up: it needs feature flag 1048576"):
        await scene.clean()
    scene.put(key, b"damaged")
    with pytest.raises(CorruptTable):
        await scene.clean()
    assert not scene.deleted


async def test_many_tags_are_read_several_at_a_time(scene: Scene) -> None:
    for number in range(40):
        lance.dataset(scene.uri).tags.create(f"t{number}", 2 + number % 2)
    store: Any = scene.cleaning()._table.store
    get, reading, most = store.get, 0, 0

    async def slow(key: str) -> bytes | None:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await anyio.sleep(0.001)
        body: bytes | None = await get(key)
        reading -= 1
        return body

    store.get = slow
    assert (await survey_module.references(store, PassedOver())).tagged == {2, 3}
    assert 4 <= most <= 16


async def test_indices_go_with_their_last_version(scene: Scene) -> None:
    lance.dataset(scene.uri).create_scalar_index("id", "BTREE")
    before = {one.split("/")[0] for one in scene.files("_indices")}
    lance.dataset(scene.uri).create_scalar_index("id", "BTREE", replace=True)
    scene.hours = 2
    await scene.clean()
    after = {one.split("/")[0] for one in scene.files("_indices")}
    assert (len(after), before & after) == (1, set())
    assert lance.dataset(scene.uri).count_rows("id = 7") == 1


async def test_what_a_foreign_restore_brings_back_stays(scene: Scene) -> None:
    old: Any = lance.dataset(scene.uri, version=2)
    old.restore()
    scene.hours = 2
    await scene.clean()
    assert scene.read_all() == {7: 20}


async def test_what_is_restored_between_look_and_deletion_stays(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning_module, "_STEP_MAX", 2)
    scene.hours = 2
    cleaning = scene.cleaning()
    found = await cleaning.look()
    old: Any = lance.dataset(scene.uri, version=3)
    old.restore()
    await cleaning.clean(found)
    read = scene.read_all()
    assert (read[3], read[6], read[7]) == (30, 29, 30)


async def test_what_is_restored_while_manifests_go_stays(scene: Scene) -> None:
    scene.hours = 2
    cleaning = scene.cleaning()
    found = await cleaning.look()
    old: Any = lance.dataset(scene.uri, version=3)
    deleted = cleaning._delete

    async def delete(files: Any, *, in_order: bool = False) -> Any:
        done = await deleted(files, in_order=in_order)
        if in_order:
            scene.put(f"_versions/{2**64 - 1 - 7}.manifest", restored)
        return done

    old.restore()
    restored = scene.get(f"_versions/{2**64 - 1 - 7}.manifest")
    scene.remove(f"_versions/{2**64 - 1 - 7}.manifest")
    cleaning._delete = delete  # type: ignore[method-assign]
    await cleaning.clean(found)
    assert scene.read_all() == {6: 29, 7: 30}


async def test_versions_that_come_after_the_listing_are_new_whatever_their_writers_clock_says(scene: Scene) -> None:
    """A writer whose clock is days behind commits rows and deletes them again while a cleanup begins."""
    scene.hours = 2
    cleaning = scene.cleaning()
    list_files = cleaning._list_files

    async def listed() -> dict[str, File]:
        found = await list_files()
        late = range(7, 10)
        scene.write(30, mode="append").delete("id >= 30")
        scene.write(40, mode="append")
        for version in late:
            scene.shift_time(version, hours=-50)
        return found

    cleaning._list_files = listed  # type: ignore[method-assign]
    await cleaning.clean(await cleaning.look())
    assert scene.read_all() == {6: 29, 7: 39, 8: 29, 9: 39}


async def test_a_clock_ahead_of_the_store_makes_nothing_older(scene: Scene) -> None:
    scene.hours, scene.store_hours = 48, 0
    found, cleaned = await scene.clean()
    assert (found.choice.removable, cleaned.files) == ((), 0)


@pytest.mark.parametrize("asked", range(5))
async def test_a_run_that_has_to_end_leaves_nothing_that_waits_for_an_age(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    """Whenever it is told to end, the next run deletes what is left, though no file is a day old."""
    monkeypatch.setattr(cleaning_module, "_STEP_MAX", 3)
    scene.hours = 2
    cleaning = scene.cleaning()
    answers = iter([True] * asked)
    cleaned = await cleaning.clean(await cleaning.look(), may_go_on=lambda: next(answers, False))
    assert cleaned.files < 14
    assert set(scene.read_all()) == {*range(cleaned.versions + 1, 7)}, "the oldest versions go first, whole"
    await scene.clean()
    assert [len(scene.files(name)) for name in ("data", "_deletions", "_transactions")] == [1, 0, 1]


@pytest.mark.parametrize(
    ("acknowledged", "republish_max", "kept"),
    [(None, 25, {4, 5}), (None, 0, set()), (30, 25, {3, 4, 5}), (60, 25, set())],
)
async def test_outcomes_that_may_be_published_again_stay(
    scene: Scene, acknowledged: int | None, republish_max: int, kept: set[int]
) -> None:
    """Those from the group offset on, or without one those of so many offsets below the position."""
    for version in range(1, 7):
        scene.settle(version, offset=10 * version)
    scene.hours = 2
    scene.topic.acknowledged_to = acknowledged
    cleaning = scene.cleaning(republish_max=republish_max)
    found = await cleaning.look()
    assert {one for one, reason in found.choice.kept.items() if reason is KeepReason.UNPUBLISHED} == kept
    await cleaning.clean(found)
    assert set(scene.read_all()) == {*kept, 6}


async def test_the_event_loop_turns_while_lists_of_many_files_are_made(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes a time that grows with the number of files, or of versions, waits here for a turn of the loop."""
    turned, waited = threading.Event(), set[str]()

    def slow(name: str, work: Any) -> Any:
        def done(*given: Any, **options: Any) -> Any:
            turned.clear()
            assert turned.wait(10), f"{name} keeps the event loop from turning"
            waited.add(name)
            return work(*given, **options)

        return done

    for name in ("add", "decide", "totals", "bytes_in_all", "bytes_unneeded"):
        monkeypatch.setattr(Lists, name, slow(name, getattr(Lists, name)))
    monkeypatch.setattr(cleaning_module, "choose", slow("choose", choose))

    async def turn() -> None:
        while True:
            turned.set()
            await anyio.sleep(0.001)

    scene.hours = 2
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn)
        found, _ = await scene.clean()
        tasks.cancel_scope.cancel()
    assert found.choice.removable == (1, 2, 3, 4, 5)
    assert len(waited) == 6


async def _pause(cleaning: Cleanup) -> None:
    loading = Loading(monotonic=anyio.current_time)
    await operate.write(
        await load(cleaning._table, loading),
        loading,
        sources(),
        new_position=start_of(await cleaning._topic.identity(), 0),
        change_pause=lambda _: Pause(reason="a backup", since_ms=0),
        reason="a backup",
    )


async def test_a_cleanup_that_looked_after_the_queue_was_paused_deletes_nothing(scene: Scene) -> None:
    scene.hours = 2
    cleaning = scene.cleaning()
    assert await cleaning.pause() is None
    await _pause(cleaning)
    found = await cleaning.look()
    assert found.choice.removable
    with pytest.raises(CommitterError, match="nothing is deleted: the queue is paused since") as caught:
        await cleaning.clean(found)
    assert caught.value.code == "paused"
    assert scene.versions() == [1, 2, 3, 4, 5, 6, 7]


async def test_a_cleanup_stops_at_its_next_step_when_the_queue_is_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning_module, "_STEP_MAX", 10)
    scene = Scene(tmp_path)
    scene.write(0)
    for number in range(1, 30):
        scene.write(10 * number, mode="append")
    scene.hours = 2
    cleaning = scene.cleaning(keep_versions=5)
    found = await cleaning.look()
    looks_again = cleaning._look_again

    async def paused_first(since: Any) -> None:
        await _pause(cleaning)
        await looks_again(since)

    monkeypatch.setattr(cleaning, "_look_again", paused_first)
    with pytest.raises(CommitterError, match="nothing more is deleted: the queue is paused since") as caught:
        await cleaning.clean(found)
    assert caught.value.code == "paused"
    assert scene.versions() == list(range(1, 32))


async def test_a_step_lists_no_more_versions_than_came_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60 versions that stay, however many go; pages of 5 stand for those of 1,000."""
    monkeypatch.setattr(manifests_module, "_LISTED_MAX", 5)
    monkeypatch.setattr(cleaning_module, "_STEP_MAX", 10)
    scene = Scene(tmp_path)
    scene.write(0)
    for number in range(1, 80):
        scene.write(10 * number, mode="append")
    scene.hours = 2
    cleaning = scene.cleaning(keep_versions=60)
    await cleaning.pause()
    found = await cleaning.look()
    assert len(found.choice.removable) == 20
    store: Any = cleaning._table.store
    listing, steps = store.list, 0
    listed: list[int] = []

    async def list_keys(prefix: str, **options: Any) -> list[str]:
        keys: list[str] = await listing(prefix, **options)
        if prefix == "_versions/":
            listed.append(len(keys))
        return keys

    async def look_again(since: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            for number in range(12):
                scene.write(10 * number, mode="append")
        await look(since)

    look = cleaning._look_again
    store.list = list_keys
    cleaning._look_again = look_again  # type: ignore[method-assign]
    await cleaning.clean(found)
    assert steps >= 6
    of_the_pause = listed.pop(0)
    assert (of_the_pause, max(listed)) == (16, 5)
    assert len(listed) == 2 * steps + 2, "two more for the twelve versions that came"
    assert len(scene.read_all()) == 72


async def test_the_files_of_a_detached_version_stay(scene: Scene) -> None:
    """Whether it is there at the look or comes after it."""
    scene.hours = 2
    name = f"d{2**63 + 7}.manifest"
    body = scene.get(f"_versions/{2**64 - 1 - 2}.manifest")
    before = {file.path for one in lance.dataset(scene.uri, version=2).get_fragments() for file in one.data_files()}
    cleaning = scene.cleaning()
    found = await cleaning.look()
    scene.put(f"_versions/{name}", body)
    await cleaning.clean(found)
    assert before <= scene.files("data")
    await scene.clean()
    assert before <= scene.files("data")
    assert name in scene.files("_versions")


def test_many_files_take_little_memory() -> None:
    """The lists of 20,000 files and their names, of which 2,000 stay."""
    lists = Lists()
    tracemalloc.start()
    for first in range(0, 20_000, 1000):
        names = [f"data/{number:060}.lance" for number in range(first, first + 1000)]
        lists.add(File(key=one, size=10, modified_ms=5) for one in names)
        lists.name(names, first)
        lists.keep(one for one in names if one.endswith("7.lance"))
    until = GracePeriod(before_ms=9, deletions_before_ms=9, is_gone=lambda _: False)
    lists.decide(partial(why, until=until), {}, above=10**6)
    deleted = 0
    while (turn := lists.next_turn(1000)) is not None:
        for page in lists.pages(turn, 1000):
            assert 0 < len(page) <= 1000
        lists.deleted(page)
        deleted += len(page)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    lists.close()
    assert deleted == 18_000
    assert peak < 3 << 20


class Held(bytes):
    """Bytes that were read."""

    now = most = 0
    """Those of all that are in memory; and the most there were."""

    def __init__(self, *_: object) -> None:
        Held.now += len(self)
        Held.most = max(Held.most, Held.now)

    def __del__(self) -> None:
        Held.now -= len(self)


class CountingReads(LocalStore):
    """Notes the sizes of the objects that are read at the same time."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, durable=False)
        self._running: list[int] = []
        self.at_once: list[list[int]] = []
        """For each call, the sizes of all objects that are read then, those of the call among them."""

    async def get(self, key: str) -> bytes | None:
        with self._noted([key]):
            return await super().get(key)

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        with self._noted(keys):
            tails = await super().get_tails(keys, size=size)
        return [replace(one, body=Held(one.body)) if isinstance(one, Tail) else one for one in tails]

    @contextmanager
    def _noted(self, keys: Sequence[str]) -> Iterator[None]:
        sizes = [Path(self.uri, key).stat().st_size for key in keys]
        self._running += sizes
        self.at_once.append(list(self._running))
        yield
        for size in sizes:
            self._running.remove(size)


@pytest.mark.parametrize(("versions", "fragments", "most"), [(600, 0, 150), (40, 2_000, 12), (12, 20_000, 2)])
async def test_manifests_are_read_many_at_once_and_those_in_memory_are_bounded_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: int, fragments: int, most: int
) -> None:
    """Small manifests, larger ones, and manifests of which some are larger than the bound."""
    monkeypatch.setattr(bodies, "BYTES_AT_ONCE", _BOUND)
    monkeypatch.setattr(Held, "now", 0)
    monkeypatch.setattr(Held, "most", 0)
    identity = TopicIdentity(cluster_id="cluster", topic="topic", topic_id="id")
    write(tmp_path / "table", versions=versions, members=1, fragments=fragments, identity=identity)
    at_once = await _read_by_survey(tmp_path / "table")
    assert max(map(len, at_once)) >= most
    assert all(len(sizes) == 1 or sum(sizes) <= _BOUND for sizes in at_once)
    if not fragments:
        assert len(at_once) <= versions / 32
        assert Held.most < 1.5 * _BOUND, "those that were read before are still in memory"


async def _read_by_survey(folder: Path) -> Sequence[Sequence[int]]:
    """`CountingReads.at_once` of a survey of this table."""
    store, lists = CountingReads(folder), Lists()
    listed = [one async for batch in store.walk("_versions/") for one in batch]
    found = await survey_module.survey(
        Table(store),
        {one.key: File(key=one.key, size=one.size, modified_ms=one.modified_ms) for one in listed},
        lists,
        now_ms=0,
        refused_after_ms=0,
        passed_over=PassedOver(),
        progress=lambda _: lambda _: None,
    )
    lists.close()
    assert len(found.facts) == len(listed)
    return store.at_once


def _other_topic(scene: Scene) -> None:
    scene.topic.topic_id = "another"
    scene.topic.begins, scene.topic.staged = 0, []


def _other_cluster(scene: Scene) -> None:
    scene.topic.cluster_id = "another"


def _truncated(scene: Scene) -> None:
    del scene.topic.staged[1:]


def _rewritten(scene: Scene) -> None:
    del scene.topic.staged[3:]
    for number in range(5):
        scene.topic.add(b"another %d" % number)


def _acknowledged_further(scene: Scene) -> None:
    scene.topic.acknowledged_to = 9


def _keys_dropped(scene: Scene) -> None:
    scene.topic.acknowledged_to = 3
    key = f"_versions/{2**64 - 1 - 5}.manifest"
    file = decode(scene.get(key))
    manifest, transaction = file.manifest, file.transaction
    assert transaction is not None
    manifest.table_metadata.clear()
    transaction.transaction_properties.clear()
    scene.put(key, encode(manifest, file.indices, transaction))


REFUSALS = [
    (_other_topic, "topic_id"),
    (_other_cluster, "topic_id"),
    (_truncated, "position_beyond_end"),
    (_rewritten, "log_rewritten"),
    (_acknowledged_further, "position_went_back"),
    (_keys_dropped, "keys_missing"),
]


@pytest.mark.parametrize(("change", "code"), REFUSALS)
async def test_nothing_is_deleted_where_a_committer_would_refuse_to_run(scene: Scene, change: Any, code: str) -> None:
    """It takes records for settled that are not: their files and read versions would go."""
    for number in range(4):
        scene.topic.add(b"%d" % number)
    scene.settle(5, offset=3)
    scene.hours = 48
    change(scene)
    append = scene.staged_append(100)
    scene.topic.add(append)
    scene.topic.add(staging.delete(lance.dataset(scene.uri, version=2), "id = 3"))
    with pytest.raises(RefusedToRun, match="nothing is deleted, since a committer would refuse to run here") as raised:
        await scene.clean()
    assert raised.value.code == code
    assert scene.versions() == [1, 2, 3, 4, 5, 6]
    assert not scene.deleted


@pytest.mark.parametrize(("change", "code"), REFUSALS)
async def test_indices_of_all_records_are_left_alone_where_a_committer_would_refuse_to_run(
    scene: Scene, change: Any, code: str
) -> None:
    del code
    for number in range(4):
        scene.topic.add(b"%d" % number)
    for version in (5, 6):
        scene.settle(version, offset=3)
    change(scene)
    scene.topic.add(staging.create_index(lance.dataset(scene.uri), "id", "BTREE"))
    scene.topic.staged.insert(0, scene.topic.staged.pop())
    assert (await scene.cleaning().waiting_records()).indices == {"id_idx"}


@pytest.mark.parametrize(
    ("change", "code"), [(_other_topic, "topic_id"), (_truncated, "log_rewritten"), (_rewritten, "log_rewritten")]
)
async def test_nothing_more_is_deleted_when_the_topic_changes_after_the_look(
    scene: Scene, change: Any, code: str
) -> None:
    for number in range(4):
        scene.topic.add(b"%d" % number)
    scene.settle(5, offset=3)
    scene.hours = 48
    cleaning = scene.cleaning()
    found = await cleaning.look()
    change(scene)
    if code == "topic_id":
        for number in range(6):
            scene.topic.add(b"new %d" % number)
    with pytest.raises(RefusedToRun) as raised:
        await cleaning.clean(found)
    assert raised.value.code == code
    assert not scene.deleted


async def test_a_position_that_a_foreign_version_carries_counts_as_it_does_for_a_committer(scene: Scene) -> None:
    """Above the newest version of the queue: the queue's keys were replaced by others, with a copy of its position."""
    for number in range(4):
        scene.topic.add(b"%d" % number)
    scene.settle(5, offset=3)
    key = f"_versions/{2**64 - 1 - 6}.manifest"
    file = decode(scene.get(key))
    manifest = file.manifest
    text = decode(scene.get(f"_versions/{2**64 - 1 - 5}.manifest")).manifest.table_metadata["committerd.position"]
    manifest.table_metadata["committerd.position"] = text.replace('"topic_id":"id"', '"topic_id":"copy"')
    assert file.transaction is not None
    scene.put(key, encode(manifest, file.indices, file.transaction))
    scene.hours = 48
    with pytest.raises(RefusedToRun):
        await scene.clean()


async def test_refusals_of_another_topic_name_no_record_of_this_one(scene: Scene) -> None:
    refused = Refusal(offset=70, uuid="u", status=Status.INVALID, reason="schema")
    for version, topic_id in ((5, "old"), (6, "id")):
        scene.settle(version, offset=1, refused=[refused] if topic_id == "old" else [], topic_id=topic_id)
    scene.hours = 48
    await scene.clean()
    assert scene.topic.reads == 0
