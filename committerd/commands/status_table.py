"""What `committerd status` reads of the table: its last versions, and what the queue has done in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from committerd.committer.answering import status_of
from committerd.format.manifest_file import ManifestFile
from committerd.format.messages import Refusal
from committerd.format.paths import manifest_key
from committerd.rules.answers import Settled, Status, decode_settled
from committerd.rules.position import Position, decode_position, highest
from committerd.several import for_each
from committerd.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionState:
    """One version."""

    version: int
    timestamp_ms: int
    """Unix time, by the clock of whoever committed it."""
    settled: Settled
    position: Position | None
    """What it carries."""
    manifest_bytes: int
    fragments: int
    data_bytes: int
    """Of the data files, as far as the manifest knows their sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The last versions, newest first; none where there is no table."""

    uri: str
    versions: Sequence[VersionState]

    @property
    def position(self) -> Position | None:
        """The highest that any of the versions carries."""
        return highest(one.position for one in self.versions if one.position is not None)

    def answers(self) -> Mapping[tuple[Status, str], int]:
        """How often each status and reason was given in these versions."""
        found: Counter[tuple[Status, str]] = Counter()
        for one in self.versions:
            for entry in one.settled.entries():
                found[status_of(entry), entry.reason if isinstance(entry, Refusal) else ""] += 1
        return dict(sorted(found.items()))


async def look_at_table(table: Table, newest: int) -> TableState:
    """Read so many versions. Raises `StoreUnavailable`, `CorruptTable`, `UnsupportedTable`, `RefusedToRun`."""
    found: dict[int, VersionState] = {}

    async def read(version: int) -> None:
        file = await table.read(version)
        if file is not None:
            found[version] = await _state(table, file)

    await for_each((await table.versions())[-newest:], read)
    return TableState(uri=table.uri, versions=[found[version] for version in sorted(found, reverse=True)])


async def _state(table: Table, file: ManifestFile) -> VersionState:
    manifest = file.manifest
    key = manifest_key(file.version, table.scheme) if table.scheme is not None else ""
    return VersionState(
        version=file.version,
        timestamp_ms=manifest.timestamp.ToMilliseconds(),
        settled=decode_settled(await table.transaction(file), version=file.version),
        position=decode_position(manifest.table_metadata),
        manifest_bytes=await table.store.head(key) or 0,
        fragments=len(manifest.fragments),
        data_bytes=sum(data.file_size_bytes for fragment in manifest.fragments for data in fragment.files),
    )
