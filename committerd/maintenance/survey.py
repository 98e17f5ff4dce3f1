"""Reads all versions of a table: the facts that decide which ones may go, and the files that they name.

The versions are read from the newest one down. The first version that names a file is then the last one that does, in
the order of the table, and fragments that a version shares with the one above it need not be decoded again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from committerd.concurrency import for_each
from committerd.errors import CorruptTable
from committerd.lance.format.manifest_file import ManifestFile, decode
from committerd.maintenance.names import Names
from committerd.maintenance.versions import VersionFacts
from committerd.queue.outcomes import settled_by
from committerd.queue.position import Position, decode_position, highest
from committerd.stores.port import ObjectStore
from committerd.table.versions import Table
from committerd_common.paths import VERSIONS, NamingScheme, manifest_key

_AT_ONCE = 8
_OURS = "committerd."
_TAGS, _BRANCHES = "_refs/tags/", "_refs/branches/"


@dataclass(slots=True)
class Survey:
    """What the versions of a table say, as far as they were read."""

    facts: dict[int, VersionFacts] = field(default_factory=dict)
    last_named: dict[str, int] = field(default_factory=dict)
    """By name of a file: the highest version that names it."""
    refused: dict[int, int] = field(default_factory=dict)
    """By offset of a record that was refused: when, in Unix milliseconds."""
    position: Position | None = None
    """The highest position that a version carries."""

    @property
    def latest(self) -> int:
        """The highest version that was read; 0 = none."""
        return max(self.facts, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The versions that tags and branches name."""

    tagged: frozenset[int]
    branched: frozenset[int]


async def survey(table: Table, modified_ms: dict[str, int], known: Survey | None = None) -> Survey:
    """Read the versions that `known` does not have, and add them to it.

    `modified_ms`: when the manifests were written, by key. Raises `StoreUnavailable`, `UnsupportedTable` for a version
    that may name files in an unknown way, and `CorruptTable` for one that can't be read: what it names is not known.
    """
    found = known if known is not None else Survey()
    versions = [one for one in await table.versions() if one not in found.facts]
    versions.reverse()
    above: Sequence[bytes] = ()
    for first in range(0, len(versions), _AT_ONCE):
        bodies: dict[int, bytes | None] = {}

        async def fetch(version: int, into: dict[int, bytes | None] = bodies) -> None:
            into[version] = await table.store.get(_key(table, version))

        batch = versions[first : first + _AT_ONCE]
        await for_each(batch, fetch, at_once=_AT_ONCE)
        for version in batch:
            body = bodies[version]
            if body is not None:  # None: another cleanup has deleted it since the listing
                above = await _add(found, table, version, body, above=above, modified_ms=modified_ms)
    return found


async def _add(
    found: Survey, table: Table, version: int, body: bytes, *, above: Sequence[bytes], modified_ms: dict[str, int]
) -> Sequence[bytes]:
    """Add one version. `above`: the chunks of fragments of the version read before it. Returns those of this one."""
    file = decode(body)
    if file.version != version:
        raise CorruptTable(f"the manifest of version {version} says that it is version {file.version}")
    names = Names()
    chunks = list(file.fragments.bodies())
    names.add_parts(
        file, [own for own, other in zip_longest(chunks, above) if own and not (other or b"").startswith(own)]
    )
    for name in names.keys:
        if found.last_named.get(name, 0) < version:
            found.last_named[name] = version
    settled = settled_by(await table.transaction(file), version=version)
    written = modified_ms.get(_key(table, version), 0)
    time_ms = max(file.outline.timestamp.ToMilliseconds(), written)
    for refusal in settled.refusals:
        found.refused[refusal.offset] = max(time_ms, found.refused.get(refusal.offset, 0))
    if settled.ours:
        positions = (one for one in (found.position, _position(file)) if one is not None)
        found.position = highest(positions)
    found.facts[version] = VersionFacts(
        version=version,
        time_ms=time_ms,
        from_queue=settled.ours,
        keys=frozenset(key for key in file.outline.table_metadata if key.startswith(_OURS)),
        last_offset=max((one.offset for one in settled.entries()), default=-1),
    )
    return chunks


async def named_by_versions(table: Table, keys: Iterable[str]) -> set[str]:
    """The files that the manifests with these keys name; those that are gone name none."""
    names = Names()
    for key in keys:
        body = await table.store.get(key)
        if body is not None:
            names.add(decode(body))
    return names.keys


async def references(store: ObjectStore) -> References:
    """The versions of the main branch that tags and branches name. Raises `CorruptTable` for one that can't be read."""
    tagged, branched = set(), set()
    for key in await store.list(_TAGS):
        tag = await _read_reference(store, key)
        if tag and tag.get("branch") in (None, "main"):
            tagged.add(int(tag["version"]))
    for key in await store.list(_BRANCHES):
        branch = await _read_reference(store, key)
        if not branch:
            continue
        if branch.get("parentBranch") in (None, "main"):
            branched.add(int(branch["parentVersion"]))
        # A branch of a branch reads files of the version at which the first of them left the main branch.
        lineage = (branch.get("identifier") or {}).get("version_mapping") or []
        if lineage:
            branched.add(int(lineage[0][0]))
    return References(tagged=frozenset(tagged), branched=frozenset(branched))


async def _read_reference(store: ObjectStore, key: str) -> dict[str, Any] | None:
    body = await store.get(key)
    if body is None or not key.endswith(".json"):
        return None
    try:
        found = json.loads(body)
    except ValueError as error:
        raise CorruptTable(f"{key} can't be read, so the version that it keeps is not known: {error}") from error
    if not isinstance(found, dict):
        raise CorruptTable(f"{key} is no JSON object, so the version that it keeps is not known")
    return found


def detached_manifests(keys: Iterable[str]) -> list[str]:
    """The keys of the manifests of detached versions, which have names like `d9223372036854775809.manifest`."""
    names = (key.removeprefix(VERSIONS) for key in keys if key.startswith(f"{VERSIONS}d"))
    return [f"{VERSIONS}{name}" for name in names if name.endswith(".manifest")]


def _key(table: Table, version: int) -> str:
    return manifest_key(version, table.scheme or NamingScheme.V2)


def _position(file: ManifestFile) -> Position | None:
    return decode_position(file.outline.table_metadata)
