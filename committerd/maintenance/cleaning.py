"""Deletes old versions, and files that nothing names.

The order is what makes it safe while others write:

1. All files are listed. What is written later is not in the list, and stays.
2. All versions are read, then the records that wait, then the versions that came meanwhile. So a file of a record is
   seen in the record, or in the version that committed it.
3. Before each step, the records that were staged since are read, tags and branches, and the versions that came since.
4. What the step deletes is written down. Then the manifests go, the oldest first. Step 3 is done once more, since a
   version may have been restored until then, and the files go. So a killed run leaves versions that are whole, and
   files that no version names; the next run finds these in the report.

A writer that stages a file which is older than `reclaim_ms` and was in no version may lose it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from committerd.concurrency import for_each
from committerd.errors import SettingsError, StoreUnavailable
from committerd.maintenance import report
from committerd.maintenance.files import File, Named, Why, deletable
from committerd.maintenance.names import owner
from committerd.maintenance.report import Report
from committerd.maintenance.survey import (
    Survey,
    detached_manifests,
    named_by_versions,
    references,
    survey,
)
from committerd.maintenance.versions import Choice, Kept, Needs, Retention, choose
from committerd.maintenance.waiting import StagedTopic, Wanted, named_at, staged_since, waiting
from committerd.queue.position import decode_position
from committerd.stores.port import Walkable
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
"""Most files that are deleted after one look at what was staged since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long things are kept."""

    keep_ms: int
    keep_versions: int
    reclaim_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What may be deleted, and what stays."""

    latest: int
    choice: Choice
    files: Sequence[tuple[File, Why]]
    """All that may go, the manifests of `choice.removable` among them, in the order in which they go."""
    bytes_in_all: int
    unneeded_bytes: int
    """Size of the files that nothing needs and that are too young to go."""
    oldest_read_version: int | None
    """The lowest read version of the records that wait."""
    waiting_records: int
    seen: frozenset[str] = frozenset()
    """The keys of the manifests that were read."""

    @property
    def bytes(self) -> int:
        return sum(file.size for file, _ in self.files)

    def count(self, reason: Why) -> tuple[int, int]:
        """Number and bytes of the files that go for this reason."""
        sizes = [file.size for file, why in self.files if why is reason]
        return len(sizes), sum(sizes)


@dataclass(slots=True)
class Cleaned:
    """What a run has deleted."""

    versions: int = 0
    files: int = 0
    bytes: int = 0
    by_reason: dict[str, int] = field(default_factory=dict)
    """Number of deleted files, by reason."""

    def add(self, files: Sequence[tuple[File, Why]]) -> None:
        for file, why in files:
            self.files += 1
            self.bytes += file.size
            self.by_reason[why.value] = self.by_reason.get(why.value, 0) + 1
            self.versions += why is Why.MANIFEST


@dataclass(slots=True)
class _Since:
    """What a run has learned since the look, and what it has deleted."""

    seen: set[str]
    """The keys of the manifests that were read."""
    names: set[str] = field(default_factory=set)
    """The files that stay after all."""
    stay: set[str] = field(default_factory=set)
    """The keys of the manifests that stay after all."""
    gone: set[str] = field(default_factory=set)
    """The keys of the manifests that were deleted."""
    read_at: int | None = None
    """The lowest version at which a record was read that was staged since."""

    def still(self, files: Sequence[tuple[File, Why]]) -> list[tuple[File, Why]]:
        """What of it may go nevertheless."""
        return [(file, why) for file, why in files if file.key not in self.stay and owner(file.key) not in self.names]


class Cleaning:
    """The cleanup of one table. `note` is called with each deletion, before it."""

    def __init__(
        self,
        table: Table,
        topic: StagedTopic,
        policy: Policy,
        *,
        wall_clock: Callable[[], datetime],
        note: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> None:
        if not isinstance(table.store, Walkable):
            raise SettingsError(f"{table.uri}: this store can't list files with their times, so nothing is deleted")
        self._table = table
        self._store = table.store
        self._topic = topic
        self._policy = policy
        self._wall_clock = wall_clock
        self._note = note
        self._read_to = 0
        """The end of the staged topic up to which `look` has read it."""

    async def look(self) -> Found:
        """Find out what may be deleted; deletes nothing.

        Raises `StoreUnavailable`, `QueueUnavailable`, `CorruptTable`, and `UnsupportedTable` for a table that may name
        files in a way that this version of committerd does not know.
        """
        now_ms = await self._common_now_ms()
        files = await self._files()
        modified = {one.key: one.modified_ms for one in files if one.key.startswith(VERSIONS)}
        found = await survey(self._table, modified)
        settled_latest = found.latest
        wanted, self._read_to = await waiting(self._topic, self._table.store, found.position)
        await survey(self._table, modified, found)
        choice = await self._choose(found, wanted, settled_latest, now_ms)
        named = await self._named(found, wanted, choice, modified, now_ms=now_ms)
        seen = {*map(self._manifest, found.facts), *detached_manifests(modified)}
        return replace(self._found(files, found, wanted, choice, named=named, now_ms=now_ms), seen=frozenset(seen))

    async def indices_in_the_making(self) -> set[str]:
        """The names of the indices that waiting records create or replace."""
        latest = await self._table.latest()
        position = decode_position(latest.outline.table_metadata) if latest is not None else None
        return (await waiting(self._topic, self._table.store, position))[0].indices

    async def clean(
        self,
        found: Found,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
        summary: Mapping[str, int] = MappingProxyType({}),
    ) -> Cleaned:
        """Delete what `look` has just found.

        `may_go_on`: asked before each step. `summary`: more figures for the summary of the run, which `status` shows.
        """
        cleaned = Cleaned()
        left = list(found.files)
        since = _Since(seen=set(found.seen))
        started_ms, number = self._now_ms(), 0
        while left and may_go_on():
            await self._look_again(found, since, left)
            left = since.still(left)
            step, left = left[:_STEP_MAX], left[_STEP_MAX:]
            if not step:
                continue
            keys = {file.key for file, _ in step}
            written = Report(
                key=report.report_key(started_ms, number),
                versions=[one for one in found.choice.removable if self._manifest(one) in keys],
                files=step,
            )
            number += 1
            await self._table.store.put(written.key, written.encode(time_ms=self._now_ms()))
            manifests = [one for one in step if one[1] is Why.MANIFEST]
            rest = [one for one in step if one[1] is not Why.MANIFEST]
            await self._delete(manifests, in_order=True)
            cleaned.add(manifests)
            since.gone |= {file.key for file, _ in manifests}
            if manifests:
                await self._look_again(found, since, [*rest, *left])
                rest = since.still(rest)
            await self._delete(rest)
            cleaned.add(rest)
            await self._table.store.put(report.done_key(written.key), b"")
        if not left:
            await self._finish(found, cleaned, summary)
        return cleaned

    async def _files(self) -> list[File]:
        assert isinstance(self._store, Walkable)
        return [
            File(key=one.key, size=one.size, modified_ms=one.modified_ms)
            for folder in _FOLDERS
            async for batch in self._store.walk(folder)
            for one in batch
        ]

    async def _choose(self, found: Survey, wanted: Wanted, settled_latest: int, now_ms: int) -> Choice:
        names = await references(self._table.store)
        needs = Needs(
            tagged=names.tagged,
            branched=names.branched,
            read_at=wanted.read_at,
            acknowledged=await self._topic.acknowledged(),
        )
        retention = Retention(keep_ms=self._policy.keep_ms, keep_versions=self._policy.keep_versions)
        choice = choose(list(found.facts.values()), needs, retention, now_ms=now_ms)
        # What came while the versions were read is the newest, whatever the clocks of its writers say.
        late = {one: Kept.AGE for one in choice.removable if one >= settled_latest}
        return Choice(removable=tuple(one for one in choice.removable if one not in late), kept={**choice.kept, **late})

    async def _named(
        self, found: Survey, wanted: Wanted, choice: Choice, modified: Mapping[str, int], *, now_ms: int
    ) -> Named:
        """The names that decide."""
        above = max(choice.removable, default=0)
        kept = {name for name, version in found.last_named.items() if version > above}
        below = [self._manifest(one) for one in choice.kept if one <= above]
        kept |= await named_by_versions(self._table, [*below, *detached_manifests(modified)])
        kept |= wanted.names
        lately = [offset for offset, time_ms in found.refused.items() if time_ms > now_ms - self._policy.reclaim_ms]
        if lately and (found.position is None or found.position.topic_id == await self._topic.topic_id()):
            kept |= await named_at(self._topic, self._table.store, lately)
        return Named(kept=kept, removed=found.last_named.keys(), unfinished=await self._promised())

    def _found(
        self, files: Sequence[File], found: Survey, wanted: Wanted, choice: Choice, *, named: Named, now_ms: int
    ) -> Found:
        manifests = {self._manifest(one): number for number, one in enumerate(choice.removable)}
        going = [(file, Why.MANIFEST) for file in files if file.key in manifests]
        going.sort(key=lambda one: manifests[one[0].key])
        others = deletable(files, named, before_ms=now_ms - self._policy.reclaim_ms)
        gone = {file.key for file, _ in others}
        unneeded = [one for one in files if one.key not in gone and _is_unnamed(one, named)]
        return Found(
            latest=found.latest,
            choice=choice,
            files=[*going, *others],
            bytes_in_all=sum(one.size for one in files),
            unneeded_bytes=sum(one.size for one in unneeded),
            oldest_read_version=wanted.read_at,
            waiting_records=wanted.records,
        )

    async def _promised(self) -> frozenset[str]:
        """The keys that killed runs were about to delete with their versions."""
        keys: set[str] = set()
        for key in report.unfinished_reports(await self._table.store.list(report.FOLDER)):
            body = await self._table.store.get(key)
            keys |= report.promised(body or b"")
        return frozenset(keys)

    async def _look_again(self, found: Found, since: _Since, left: Sequence[tuple[File, Why]]) -> None:
        """Add what stays because of newer records, tags, branches and versions. `left`: what is not deleted yet."""
        store = self._table.store
        staged, self._read_to = await staged_since(self._topic, store, self._read_to)
        since.names |= staged.names
        if staged.read_at is not None:
            since.read_at = min(staged.read_at, since.read_at or staged.read_at)
        names = await references(store)
        needed = names.tagged | names.branched
        read_at = found.latest if since.read_at is None else since.read_at
        manifests = {self._manifest(one): one for one in found.choice.removable}
        open_keys = {key: one for key, one in manifests.items() if key not in since.gone | since.stay}
        stay = {key for key, one in open_keys.items() if one in needed or one >= read_at}
        listed = [*map(self._manifest, await self._table.versions()), *detached_manifests(await store.list(VERSIONS))]
        new = set(listed) - since.seen
        brought = await named_by_versions(self._table, new)
        back = brought & {owner(file.key) for file, why in left if why is Why.VERSION}
        if back:  # a version was restored
            for key in open_keys.keys() - stay:
                if back & await named_by_versions(self._table, [key]):
                    stay.add(key)
        since.names |= brought | await named_by_versions(self._table, stay)
        since.stay |= stay
        since.seen |= new

    async def _delete(self, files: Sequence[tuple[File, Why]], *, in_order: bool = False) -> None:
        for file, why in files:
            self._note(report.line(file, why))
        keys = [file.key for file, _ in files]
        if not in_order:
            await for_each(keys, self._table.store.delete)
            return
        for key in keys:
            await self._table.store.delete(key)

    async def _finish(self, found: Found, cleaned: Cleaned, figures: Mapping[str, int]) -> None:
        store, now_ms = self._table.store, await self._common_now_ms()
        keys = await store.list(report.FOLDER)
        for key in report.unfinished_reports(keys):  # of runs that were killed: this run has done what was left
            await store.put(report.done_key(key), b"")
        for key in report.outdated(keys, now_ms=now_ms):
            await store.delete(key)
        summary = {
            **figures,
            "time_ms": now_ms,
            "version": found.latest,
            "versions": len(found.choice.kept),
            "versions_removed": cleaned.versions,
            "files_removed": cleaned.files,
            "bytes_removed": cleaned.bytes,
            "bytes_in_all": found.bytes_in_all - cleaned.bytes,
            "unneeded_bytes": found.unneeded_bytes,
        }
        await store.put(report.LATEST, json.dumps(summary).encode())

    def _manifest(self, version: int) -> str:
        return manifest_key(version, self._table.scheme or NamingScheme.V2)

    def _now_ms(self) -> int:
        return int(self._wall_clock().timestamp() * 1000)

    async def _common_now_ms(self) -> int:
        """The time by the clock that is behind: that of this machine, or that of the store, which dates the files."""
        assert isinstance(self._store, Walkable)
        await self._table.store.put(report.CLOCK, b"")
        async for batch in self._store.walk(report.FOLDER):
            for one in batch:
                if one.key == report.CLOCK:
                    return min(self._now_ms(), one.modified_ms)
        raise StoreUnavailable(f"{self._table.uri}: {report.CLOCK} is not listed, so the store's time is not known")


def _is_unnamed(file: File, named: Named) -> bool:
    name = owner(file.key)
    return name is not None and name not in named.kept
