"""Reads all versions of a table: the facts that decide which versions may go, and the files that they name.

The versions are read from the newest down. So the first version that is found to name a file is the highest that does,
and fragments that a version shares with the version above it need not be decoded again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap64

from committerd.concurrency import for_each
from committerd.errors import CorruptTable, ObjectUnreadable, RefusedToRun
from committerd.lance.format.manifest_file import ManifestFile, ShallowManifest, decode
from committerd.lance.format.timestamps import to_ms
from committerd.maintenance.bodies import BYTES_AT_ONCE, IndexedManifest, ManifestBatch, each_manifest, unreadable
from committerd.maintenance.files import File
from committerd.maintenance.lists import Lists
from committerd.maintenance.names import Names, new_parts
from committerd.maintenance.passed_over import PassedOver
from committerd.maintenance.versions import VersionFacts
from committerd.queue.outcomes import settled_by
from committerd.queue.position import Position, decode_position, highest
from committerd.stores.port import ObjectStore
from committerd.table.versions import Table
from committerd_common.branches import BRANCHES, MAIN, branch_file
from committerd_common.messages import Manifest, Transaction
from committerd_common.paths import NamingScheme, manifest_key, transaction_key

_REFERENCES_AT_ONCE = 8
_OURS = "committerd."
_TAGS = "_refs/tags/"

Progress = Callable[[int], Callable[[int], None]]


@dataclass(slots=True)
class Survey:
    """What the versions of a table say, as far as they were read."""

    facts: dict[int, VersionFacts] = field(default_factory=dict)
    refused: BitMap64 = field(default_factory=BitMap64)
    """The offsets of the records that were refused lately."""
    position: Position | None = None
    """The highest position that a version carries."""
    key_sets: dict[frozenset[str], frozenset[str]] = field(default_factory=dict)
    """Versions have few different sets of keys, and share them."""

    @property
    def latest(self) -> int:
        """The highest version that was read; 0 = none."""
        return max(self.facts, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The versions that tags and branches name."""

    tagged: frozenset[int]
    branched: frozenset[int]
    all_known: bool = True
    """False: one of them can't be read, so the version that it keeps is not known."""


async def survey(
    table: Table,
    manifests: Mapping[str, File],
    lists: Lists,
    *,
    now_ms: int,
    refused_after_ms: int,
    passed_over: PassedOver,
    progress: Progress,
    known: Survey | None = None,
) -> Survey:
    """Read the versions above those that `known` has, and add them to it, and the names that they give to `lists`.

    `manifests`: what a listing says of their folder, by key; without `known`, the versions are those of the listing. A
    version that it lacks came later, and is new at `now_ms`, whatever the clock of its writer says. `refused_after_ms`:
    refusals of older versions don't matter. `passed_over`: takes transaction files of others that can't be read.
    `progress`: given the number of versions that are read, returns what is called with the number of those that were
    just read.
    Raises `StoreUnavailable`, `UnsupportedTable` for a version that may name files in an unknown way, and
    `CorruptTable` for a version that can't be read: what it names is not known.
    """
    found = known if known is not None else Survey()
    versions = await (table.versions_among(manifests) if known is None else table.versions_above(found.latest))
    versions.reverse()
    latest = max(versions, default=0)
    reading = _SurveyReader(found, table, manifests, lists, now_ms, refused_after_ms, passed_over, latest=latest)
    keys, report = {_key(table, one): one for one in versions}, progress(len(versions))

    async def take(batch: ManifestBatch) -> None:
        for key, one in batch.items():
            if one is not None:
                await reading.add(keys[key], one)
        report(len(batch))

    await each_manifest(table.store, {key: size_of(manifests.get(key)) for key in keys}, take)
    found.position = highest(one for one in (reading.position, found.position) if one is not None)
    return found


def size_of(listed: File | None) -> int:
    """The size of a manifest in bytes, as a listing says it; a manifest that came after the listing counts as large."""
    return listed.size if listed is not None else BYTES_AT_ONCE


@dataclass(slots=True)
class _SurveyReader:
    """Adds versions to a survey, in descending order."""

    found: Survey
    table: Table
    manifests: Mapping[str, File]
    lists: Lists
    now_ms: int
    refused_after_ms: int
    passed_over: PassedOver
    latest: int
    position: Position | None = None
    """The highest position that these versions carry, down to the queue's newest version, which carries it."""
    has_position: bool = False
    above: bytes = b""
    """The fragments of the version that was read before."""
    names_above: frozenset[str] | set[str] = frozenset()
    """The names that its other parts gave."""

    async def add(self, version: int, manifest: IndexedManifest) -> None:
        """Add one version."""
        file, indices = manifest
        outline = file.outline
        if outline.version != version:
            raise CorruptTable(f"the manifest of version {version} says that it is version {outline.version}")
        names = Names()
        try:
            names.add_parts(outline, indices, new_parts(file.fragments, self.above))
        except CorruptTable as error:
            raise unreadable(_key(self.table, version), error) from error
        if new := names.keys - self.names_above:
            self.lists.name(new, version)
        self.above, self.names_above = file.fragments, names.keys
        settled = settled_by(await self._transaction(file), version=version)
        listed = self.manifests.get(_key(self.table, version))
        time_ms = max(to_ms(outline.timestamp), listed.modified_ms if listed is not None else self.now_ms)
        found = self.found
        if not self.has_position:
            own = _position(outline, believed=settled.ours or version == self.latest)
            self.position = highest(one for one in (self.position, own) if one is not None)
            self.has_position = settled.ours and own is not None
        keys = frozenset(key for key in outline.table_metadata if key.startswith(_OURS))
        # Offsets of another topic are not compared with the offsets of this topic.
        position = self.position or found.position
        same_topic = position is not None and settled.topic_id in ("", position.topic_id)
        if same_topic and time_ms > self.refused_after_ms:
            found.refused.update(refusal.offset for refusal in settled.refusals)
        found.facts[version] = VersionFacts(
            version=version,
            time_ms=time_ms,
            from_queue=settled.ours,
            keys=found.key_sets.setdefault(keys, keys),
            last_offset=max((one.offset for one in settled.entries()), default=-1) if same_topic else -1,
        )

    async def _transaction(self, file: ShallowManifest) -> Transaction | None:
        """The transaction of a version; None if it is not known. Versions of the queue have it in the manifest."""
        try:
            return await self.table.transaction(file)
        except ObjectUnreadable as error:
            self.passed_over.add(transaction_key(file.outline.transaction_file), error)
            return None


async def named_by_version(table: Table, key: str) -> set[str]:
    """The files that the manifest with this key names; a manifest that is gone names none.

    Raises `CorruptTable` if the manifest can't be read.
    """
    names = Names()
    body = await table.store.get(key)
    if body is not None:
        names.add(_decoded(key, body))
    return names.keys


def _decoded(key: str, body: bytes) -> ManifestFile:
    try:
        return decode(body)
    except CorruptTable as error:
        raise unreadable(key, error) from error


async def references(root: ObjectStore, passed_over: PassedOver, branch: str = "") -> References:
    """The versions of a branch that tags and other branches name.

    `root`: the table's root, where they lie. `branch`: empty for the main branch.
    """
    tagged: set[int] = set()
    branched: set[int] = set()
    all_known = True
    bodies: dict[str, bytes] = {}

    def pass_over(key: str, error: Exception) -> None:
        nonlocal all_known
        passed_over.add(key, error)
        all_known = False

    async def read(key: str) -> None:
        try:
            body = await root.get(key)
        except ObjectUnreadable as error:
            pass_over(key, error)
        else:
            if body is not None:
                bodies[key] = body

    keys = [*await root.list(_TAGS), *await root.list(BRANCHES)]
    await for_each([key for key in keys if key.endswith(".json")], read, at_once=_REFERENCES_AT_ONCE)
    own_file = branch_file(branch) if branch else None
    own: list[Any] = []
    for key in sorted(bodies, key=lambda one: one != own_file):  # its own file first
        try:
            said = json.loads(bodies[key])
            if key == own_file:
                own = _lineage(said)
            (tagged if key.startswith(_TAGS) else branched).update(_versions_named(key, said, branch or MAIN, own))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            pass_over(key, CorruptTable(f"{key} is not what Lance writes: {error!r}"))
    return References(tagged=frozenset(tagged), branched=frozenset(branched), all_known=all_known)


def _versions_named(key: str, one: dict[str, Any], branch: str, own: list[Any]) -> Iterator[int]:
    """The versions of a branch that a tag or another branch keeps. `own`: the lineage of that branch.

    Raises `ValueError`, `TypeError`, `LookupError` or `AttributeError` if it has another form.
    """
    if key.startswith(_TAGS):
        if (one.get("branch") or MAIN) == branch:
            yield int(one["version"])
        return
    if (one.get("parentBranch") or MAIN) == branch:
        yield int(one["parentVersion"])
    # A branch of a branch reads files of the version at which the first of them left this branch.
    lineage = _lineage(one)
    if len(lineage) > len(own) and lineage[: len(own)] == own:
        yield int(lineage[len(own)][0])


def _lineage(one: dict[str, Any]) -> list[Any]:
    """Where a branch comes from, outermost first: for each branch on the way to it, and for itself, the version at
    which it began, and its id.
    """
    return list((one.get("identifier") or {}).get("version_mapping") or [])


def _key(table: Table, version: int) -> str:
    return manifest_key(version, table.scheme or NamingScheme.V2)


def _position(outline: Manifest, *, believed: bool) -> Position | None:
    """The position of a version. If it can't be read in an old version of another writer, it counts as dropped."""
    try:
        return decode_position(outline.table_metadata, branch=outline.branch)
    except (CorruptTable, RefusedToRun):
        if believed:
            raise
        return None
