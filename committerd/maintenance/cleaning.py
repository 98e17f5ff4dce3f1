"""Deletes old versions, and files that nothing names.

The order is what makes it safe while others write:

1. All files are listed. What is written later is not in the list, and stays.
2. All versions are read, then the records that wait, then the versions that came meanwhile. So a file of a record is
   seen in the record, or in the version that committed it.
3. A step deletes a number of versions, the oldest first, with all files that go with them. Before each step, and before
   each further deletion of files, the cleanup reads the records that were staged since, tags and branches, and the
   versions that came since. It ends if the table was deleted and recreated meanwhile.
4. What the step deletes is written down. Then the manifests go, the oldest first. Then the files go, after another
   look, since a version may have been restored until then. A run that is stopped between two steps has left nothing of
   a version. A run that is stopped or killed within a step leaves versions that are whole, and files that no version
   names; the next run finds these files in the report.

The last steps delete the files that go without a version. A writer that stages a file which is older than `reclaim_ms`,
and which no version names, may lose it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from anyio import Lock, to_thread

from committerd.concurrency import for_each, in_order
from committerd.errors import CommitterError, ObjectUnreadable, RefusedToRun, StoreUnavailable, UnsupportedTable
from committerd.maintenance import report
from committerd.maintenance.branches import OtherBranches
from committerd.maintenance.files import File, GracePeriod, RemovalReason, why
from committerd.maintenance.lists import Going, Lists
from committerd.maintenance.passed_over import PassedOver
from committerd.maintenance.report import Report
from committerd.maintenance.staged import StagedReader
from committerd.maintenance.survey import (
    Progress,
    Survey,
    named_by_version,
    references,
    survey,
)
from committerd.maintenance.versions import Choice, Needs, Retention, choose
from committerd.maintenance.waiting import (
    ReadPosition,
    RecordNeeds,
    StagedTopic,
    keep_named_at,
    keep_named_in_letters,
    require_start,
    staged_since,
    waiting,
)
from committerd.queue.port import TopicIdentity
from committerd.queue.position import Pause, Position, decode_position
from committerd.queue.start import QueueFacts, owed_from
from committerd.stores.port import ObjectStore
from committerd.table.manifests import detached_manifests
from committerd.table.pause_watch import PauseWatch, pause_since
from committerd.table.versions import Table
from committerd_common.paths import (
    DATA,
    DELETIONS,
    INDICES,
    TRANSACTIONS,
    VERSIONS,
    NamingScheme,
    manifest_key,
)

_log = logging.getLogger(__name__)

_FOLDERS = (DATA, DELETIONS, INDICES, TRANSACTIONS, VERSIONS)
_STEP_MAX = 1000
"""Maximum number of files that are deleted after one look at what was staged since."""
_AT_ONCE = 16
_NAMED_AT_ONCE = 4
"""Versions whose names are in memory at once."""
_REPORT_MAX = 10_000
"""Maximum number of files in one report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long things are kept."""

    keep_ms: int
    keep_versions: int
    reclaim_ms: int
    republish_max: int
    """Maximum number of outcomes that a committer publishes again when its group has no offset."""
    transaction_bytes_max: int
    """Maximum bytes of a staged transaction that a committer takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPlan:
    """What may be deleted, and what stays."""

    latest: int
    choice: Choice
    going: Mapping[RemovalReason, tuple[int, int]]
    """Number and bytes of the files that may go, by reason; the manifests of `choice.removable` among them."""
    bytes_in_all: int
    unneeded_bytes: int
    """Size of the files that nothing needs and that are too young to go."""
    oldest_read_version: int | None
    """The lowest read version of the records that wait."""
    waiting_records: int
    manifests: Mapping[str, int]
    """The versions in `choice.removable`, by the keys of their manifests."""
    detached: frozenset[str] = frozenset()
    """The keys of the manifests of detached versions."""

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.going.values())

    @property
    def files(self) -> int:
        return sum(count for count, _ in self.going.values())

    def count(self, reason: RemovalReason) -> tuple[int, int]:
        """Number and bytes of the files that go for this reason."""
        return self.going.get(reason, (0, 0))


@dataclass(slots=True)
class CleanupResult:
    """What a run has deleted."""

    versions: int = 0
    files: int = 0
    bytes: int = 0
    by_reason: dict[str, int] = field(default_factory=dict)
    """Number of deleted files, by reason."""

    def add(self, files: Sequence[Going]) -> None:
        for file, reason in files:
            self.files += 1
            self.bytes += file.size
            self.by_reason[reason.value] = self.by_reason.get(reason.value, 0) + 1
            self.versions += reason is RemovalReason.MANIFEST


@dataclass(slots=True)
class _CleanupState:
    """What a run has learned since the look, and what it has deleted."""

    highest: int
    """The highest version that was read."""
    detached: set[str]
    """The keys of the manifests of detached versions that were read."""
    going: dict[str, int]
    """The versions that are still to be deleted, by the keys of their manifests."""
    read_at: int
    """The lowest read version of the records that were staged since; without such records, the latest version."""


class Cleanup:
    """The cleanup of one table, or of the branch `branch` of a table.

    `open_branch` opens the folder of a branch; an empty name is that of the main branch. `note` is called with each
    deletion, before it; `passes_over` with the key of each object that can't be read or deleted, and the reason;
    `progress` after each step, with what the run has deleted so far, and the number of files that it found to delete.
    `reads`: given the number of versions that a look reads, returns what is called with the number of those just read.
    """

    def __init__(
        self,
        table: Table,
        topic: StagedTopic,
        policy: Policy,
        *,
        wall_clock: Callable[[], datetime],
        open_branch: Callable[[str], ObjectStore],
        branch: str = "",
        note: Callable[[Mapping[str, Any]], None] = lambda _: None,
        passes_over: Callable[[str, str], None] = lambda *_: None,
        progress: Callable[[CleanupResult, int], None] = lambda *_: None,
        reads: Progress = lambda _: lambda _: None,
    ) -> None:
        self._table = table
        self._store = table.store
        self._topic = topic
        self._policy = policy
        self._wall_clock = wall_clock
        self._branch = branch
        root = open_branch("") if branch else table.store
        # A table of its own: a watch learns new names of manifests, and `_require_same_table` tells a run of them.
        self._pause = PauseWatch(Table(table.store))
        self._others = OtherBranches(root=root, own=branch, open=open_branch)
        self._note = note
        self._passes_over = passes_over
        self.passed_over = PassedOver()
        """What the last look, and the deletions after it, have passed over."""
        self._progress = progress
        self._reads = reads
        self._read_to = ReadPosition(end=0)
        """How far `look` has read the staged topic."""
        self._identity: TopicIdentity | None = None
        """The topic's, at the look."""
        self._newest: tuple[int, bytes | None] = 0, None
        """The newest version that is known, and its end: it stays for as long as this is the same table."""
        self._lists = Lists()

    @property
    def _reader(self) -> StagedReader:
        return self._reader_to(self.passed_over)

    def _reader_to(self, passed_over: PassedOver) -> StagedReader:
        return StagedReader(
            store=self._table.store, bytes_max=self._policy.transaction_bytes_max, unreadable=passed_over.add
        )

    def close(self) -> None:
        """Delete the temporary file in which the last look has its lists."""
        self._lists.close()

    async def pause(self) -> Pause | None:
        """The pause that an operator has put in place; None if the queue is not paused. Raises `StoreUnavailable`."""
        return await self._pause.look()

    async def look(self) -> CleanupPlan:
        """Find out what may be deleted; deletes nothing.

        Raises `StoreUnavailable`, `QueueUnavailable`, `CorruptTable`, `RefusedToRun` if a committer would refuse to run
        on this table and topic, and `UnsupportedTable` for a table that may name files in a way that this version of
        committerd does not know.
        """
        self._lists.close()
        lists = self._lists = Lists()
        self._others = self._others.unread()
        self.passed_over = PassedOver(self._passes_over)
        published = await self._topic.published()
        newest = await self._table.latest_version()
        self._newest = newest or 0, None if newest is None else await self._table.end(newest)
        await self._require_branch(newest)
        now_ms = await self._common_now_ms()
        manifests = await self._list_files()
        lately_ms = now_ms - self._policy.reclaim_ms
        read = partial(
            survey,
            self._table,
            manifests,
            lists,
            now_ms=now_ms,
            refused_after_ms=lately_ms,
            passed_over=self.passed_over,
            progress=self._reads,
        )
        found = await read()
        wanted, self._read_to = await waiting(self._topic, self._reader, found.position, lists.keep)
        try:
            facts = await require_start(self._topic, found.position, published)
        except RefusedToRun as error:
            raise RefusedToRun(
                f"nothing is deleted, since a committer would refuse to run here: {error}", code=error.code
            ) from error
        self._identity = facts.identity
        await read(known=found)
        choice = await self._choose(found, wanted, facts, now_ms=now_ms)
        removable = {self._manifest(one): one for one in choice.removable}
        above = max(choice.removable, default=0)
        detached = detached_manifests(manifests)
        stay = [*(self._manifest(one) for one in choice.kept if one <= above), *detached]

        async def keep(_: str, names: set[str]) -> bool:
            lists.keep(names)
            return True

        await in_order(stay, partial(named_by_version, self._table), keep, at_once=_NAMED_AT_ONCE)
        await to_thread.run_sync(lists.keep, await self._others.names(self._reads))
        if found.refused:
            await keep_named_at(self._topic, self._reader, found.refused, lists.keep)
        await keep_named_in_letters(self._topic, self._reader, lately_ms, lists.keep)
        await self._read_promises()
        until = GracePeriod(
            before_ms=lately_ms,
            deletions_before_ms=now_ms - self._policy.keep_ms,
            is_gone=lambda version: version <= found.latest and version not in choice.kept,
        )
        await to_thread.run_sync(partial(lists.decide, partial(why, until=until), removable, above=above))
        return CleanupPlan(
            latest=found.latest,
            choice=choice,
            going=await to_thread.run_sync(lists.totals),
            bytes_in_all=await to_thread.run_sync(lists.bytes_in_all),
            unneeded_bytes=await to_thread.run_sync(partial(lists.bytes_unneeded, above=above)),
            oldest_read_version=wanted.read_at,
            waiting_records=wanted.records,
            manifests=removable,
            detached=frozenset(detached),
        )

    async def waiting_records(self) -> RecordNeeds:
        """What waiting records create, replace and need. Raises `QueueUnavailable` and `StoreUnavailable`."""
        published = await self._topic.published()
        latest = await self._table.latest()
        position = (
            decode_position(latest.outline.table_metadata, branch=latest.outline.branch) if latest is not None else None
        )
        try:
            await require_start(self._topic, position, published)
        except RefusedToRun:
            position = None  # it may not be about this topic
        # A cleanup that runs beside it says what can't be read.
        return (await waiting(self._topic, self._reader_to(PassedOver()), position, lambda _: None))[0]

    async def clean(
        self,
        found: CleanupPlan,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
        summary: Mapping[str, int] = MappingProxyType({}),
    ) -> CleanupResult:
        """Delete what `look` has just found.

        `may_go_on`: asked before each step. `summary`: more figures for the summary of the run, which `status` shows;
        read at its end.

        Raises `CommitterError` (`paused`) if the queue is paused.
        """
        # A pause that came before the end of `look` is in none of the versions that the steps look for.
        paused = await self.pause()
        if paused is not None:
            raise CommitterError(f"nothing is deleted: the queue is {paused}", code="paused")
        cleaned = CleanupResult()
        since = _CleanupState(
            highest=found.latest,
            detached=set(found.detached),
            going=dict(found.manifests),
            read_at=found.latest,
        )
        number = 0
        started_ms = self._now_ms()
        while (turn := self._lists.next_turn(_STEP_MAX)) is not None and may_go_on():
            await self._look_again(since)
            reports = []
            for page in self._lists.pages(turn, _REPORT_MAX):
                reports.append(report.report_key(started_ms, number))
                number += 1
                await self._write_down(reports[-1], since, page)
            await self._step(turn, since, cleaned, may_go_on)
            self._progress(cleaned, found.files)
            if self._lists.first(turn, 1, manifests=False):
                break  # it has to end; the reports say what is left
            for key in reports:
                await self._table.store.put(report.done_key(key), b"")
        if self._lists.next_turn(1) is None:
            await self._finish(found, cleaned, summary)
        return cleaned

    async def _write_down(self, key: str, since: _CleanupState, page: Sequence[Going]) -> None:
        versions = [since.going[file.key] for file, reason in page if reason is RemovalReason.MANIFEST]
        body = Report(key=key, versions=versions, files=page).encode(time_ms=self._now_ms())
        await self._table.store.put(key, body)

    async def _step(
        self, turn: int, since: _CleanupState, cleaned: CleanupResult, may_go_on: Callable[[], bool]
    ) -> None:
        """Delete what goes in the turns up to `turn`: all manifests, then the other files."""
        lists, is_later = self._lists, False
        while manifests := lists.first(turn, _STEP_MAX, manifests=True):
            cleaned.add(await self._delete(manifests, in_order=True))
            for file, _ in manifests:
                del since.going[file.key]
            is_later = True
        while files := lists.first(turn, _STEP_MAX, manifests=False):
            if is_later:
                await self._look_again(since)
                files = lists.still(files)
            cleaned.add(await self._delete(files))
            is_later = True
            if not may_go_on():
                return

    async def _require_branch(self, newest: int | None) -> None:
        """Raise `UnsupportedTable` for a branch that is cleaned up as if it were a table without branches."""
        file = await self._table.read(newest) if newest else None
        found = file.outline.branch if file is not None else self._branch
        if found and found != self._branch:
            raise UnsupportedTable(
                f"{self._table.uri} is the branch {found!r} of a table, whose other branches may name its files: set "
                f"dataset.uri to the table's root, and dataset.branch to {found}",
                code="unknown_to_maintenance",
            )

    async def _list_files(self) -> dict[str, File]:
        """List all files. Returns the files of the folder of versions, by key."""
        of_versions: dict[str, File] = {}
        elsewhere = await self._others.folders_within()
        adding = Lock()

        async def list_folder(folder: str) -> None:
            async for batch in self._store.walk(folder):
                files = [
                    File(key=one.key, size=one.size, modified_ms=one.modified_ms)
                    for one in batch
                    if not one.key.startswith(elsewhere)
                ]
                async with adding:
                    await to_thread.run_sync(self._lists.add, files)
                if folder == VERSIONS:
                    of_versions.update((one.key, one) for one in files)

        await for_each(_FOLDERS, list_folder)
        return of_versions

    async def _choose(self, found: Survey, wanted: RecordNeeds, facts: QueueFacts, *, now_ms: int) -> Choice:
        names = await references(self._others.root, self.passed_over, self._branch)
        needs = Needs(
            tagged=names.tagged,
            branched=names.branched,
            all_known=names.all_known,
            read_at=wanted.read_at,
            unpublished=self._first_unpublished(found.position, facts),
        )
        retention = Retention(keep_ms=self._policy.keep_ms, keep_versions=self._policy.keep_versions)
        facts_of_all = list(found.facts.values())
        return await to_thread.run_sync(partial(choose, facts_of_all, needs, retention, now_ms=now_ms))

    def _first_unpublished(self, position: Position | None, facts: QueueFacts) -> int | None:
        """The first offset whose outcome a committer may have to publish again; None if there is none."""
        if position is None:
            return None
        return owed_from(position, facts.acknowledged(position.era), republish_max=self._policy.republish_max)

    async def _read_promises(self) -> None:
        """Note the keys that killed runs were about to delete with their versions."""
        for key in report.unfinished_reports(await self._table.store.list(report.FOLDER)):
            self._lists.promise(report.promised(await self._own(key)))

    async def _own(self, key: str) -> bytes:
        """An object that maintenance has written; empty if it is gone or can't be read."""
        try:
            return await self._table.store.get(key) or b""
        except ObjectUnreadable as error:
            self.passed_over.add(key, error)
            return b""

    async def _look_again(self, since: _CleanupState) -> None:
        """Keep the files that newer records, tags, branches and versions need."""
        lists = self._lists
        assert self._identity is not None
        await self._require_same_table()
        staged, self._read_to = await staged_since(
            self._topic, self._reader, self._read_to, self._identity, keep=lists.keep
        )
        names = await references(self._others.root, self.passed_over, self._branch)
        lists.keep(await self._others.names(self._reads))
        named = {*map(self._manifest, names.tagged | names.branched)}
        stay = {key for key in since.going if key in named or not names.all_known}
        if staged.read_at is not None and staged.read_at < since.read_at:
            since.read_at = staged.read_at
            stay |= {key for key, version in since.going.items() if version >= since.read_at}
        above = await self._table.versions_above(since.highest)
        if above:
            since.highest = max(above)
            self._newest = since.highest, await self._table.end(since.highest)
            pause = await pause_since(self._table, above, before=None)
            if pause is not None:
                raise CommitterError(f"nothing more is deleted: the queue is {pause}", code="paused")
        detached = set(await self._table.detached_manifests()) - since.detached
        since.detached |= detached
        restored: set[str] = set()
        for key in (*map(self._manifest, above), *detached):
            brought = await named_by_version(self._table, key)
            restored |= lists.go_with_versions(brought)
            lists.keep(brought)
        for key in since.going if restored else ():
            if not restored.isdisjoint(await named_by_version(self._table, key)):
                stay.add(key)
        for key in stay:
            del since.going[key]
            lists.keep([key])
            lists.keep(await named_by_version(self._table, key))

    async def _require_same_table(self) -> None:
        """Raise `RefusedToRun` (`table_gone`) if the table was deleted or migrated since the look.

        Versions of a table that was recreated have the numbers, and so the keys, of versions of the old table.
        """
        version, end = self._newest
        if version and await self._table.end(version) != end:
            raise RefusedToRun(
                f"version {version} is no longer what it was when it was read: the table was deleted, recreated or "
                "migrated to other names of manifests, or others delete versions too. Nothing more is deleted until "
                "the next cleanup",
                code="table_gone",
            )

    async def _delete(self, files: Sequence[Going], *, in_order: bool = False) -> list[Going]:
        """Delete these files; returns the deleted files. A manifest that can't be deleted keeps its version."""
        deleted: list[Going] = []

        async def delete(going: Going) -> None:
            file, reason = going
            self._note(report.line(file, reason))
            try:
                await self._table.store.delete(file.key)
            except ObjectUnreadable as error:
                await self._require_deletions(error)
                self.passed_over.add(file.key, error)
                if reason is RemovalReason.MANIFEST:
                    self._lists.keep(await named_by_version(self._table, file.key))
            else:
                deleted.append(going)

        await for_each(files, delete, at_once=1 if in_order else _AT_ONCE)
        self._lists.deleted(files)
        return deleted

    async def _require_deletions(self, error: ObjectUnreadable) -> None:
        """Raise this error of a deletion if the store refuses to delete any object, and not this object alone."""
        await self._table.store.put(report.TRIAL, b"")
        try:
            await self._table.store.delete(report.TRIAL)
        except ObjectUnreadable:
            raise error from None

    async def _finish(self, found: CleanupPlan, cleaned: CleanupResult, figures: Mapping[str, int]) -> None:
        store, now_ms = self._table.store, await self._common_now_ms()
        keys = await store.list(report.FOLDER)
        for key in report.unfinished_reports(keys):  # of runs that were killed: this run has done what was left
            await self._delete_entries(await self._own(key))
            await store.put(report.done_key(key), b"")
        for key in report.outdated(keys, now_ms=now_ms):
            await store.delete(key)
        earlier = report.figures(await self._own(report.LATEST)) or {}
        summary = {
            **{name: earlier[name] for name in report.STEPS_DONE if name in earlier},
            **figures,
            "time_ms": now_ms,
            "version": found.latest,
            "versions": len(found.choice.kept),
            "versions_removed": cleaned.versions,
            "files_removed": cleaned.files,
            "bytes_removed": cleaned.bytes,
            "bytes_in_all": found.bytes_in_all - cleaned.bytes,
            "unneeded_bytes": found.unneeded_bytes,
            "passed_over": self.passed_over.count,
        }
        await store.put(report.LATEST, json.dumps(summary).encode())

    async def _delete_entries(self, body: bytes) -> None:
        """Delete the entries of manifests that a killed run has deleted, as its report says."""
        there = {self._manifest(version) for version in await self._table.versions()}
        await for_each(report.promised(body, RemovalReason.MANIFEST) - there, self._table.store.delete)

    def _manifest(self, version: int) -> str:
        return manifest_key(version, self._table.scheme or NamingScheme.V2)

    def _now_ms(self) -> int:
        return int(self._wall_clock().timestamp() * 1000)

    async def _common_now_ms(self) -> int:
        """The time by the clock that is behind: that of this machine, or that of the store, which dates the files."""
        await self._table.store.put(report.CLOCK, b"")
        async for batch in self._store.walk(report.FOLDER):
            for one in batch:
                if one.key == report.CLOCK:
                    return min(self._now_ms(), one.modified_ms)
        raise StoreUnavailable(f"{self._table.uri}: {report.CLOCK} is not listed, so the store's time is not known")
