"""Reads the last versions of the table for `committerd status`, with the records that they settle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from committerd.concurrency import Concurrently, for_each
from committerd.errors import CorruptTable
from committerd.lance.format.timestamps import to_ms
from committerd.maintenance.left_alone import Failure, read_failed
from committerd.maintenance.report import read_figures
from committerd.queue.outcomes import Settled, Status, status_name
from committerd.queue.position import Pause, Position, decode_pause, decode_position
from committerd.table.sampling import sample
from committerd.table.versions import Table

_AT_ONCE = 4
"""Number of versions that are read at once: each is in memory, and a manifest of 90,000 fragments has 6 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """The state of one version."""

    version: int
    timestamp_ms: int
    """Unix time, by the clock of its writer."""
    operation: str
    from_queue: bool
    committed: int
    """Number of records that it commits."""
    refused: int
    """Number of records that it passes without committing them."""
    outcomes: Mapping[tuple[str, str], int]
    """Number of its outcomes by status and reason."""
    manifest_bytes: int
    fragments: int
    data_bytes: int
    """Total size of the data files, as far as the manifest has their sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary:
    """The last versions, newest first; empty if there is no table."""

    uri: str
    versions: Sequence[VersionSummary]
    position: Position | None = None
    """The position of the queue (`sample`)."""
    pause: Pause | None = None
    """The pause of the queue (`sample`)."""
    versions_in_all: int = 0
    """Number of the table's versions; if they are more than 100, of those above the first gap (`shown_versions`)."""
    maintenance: Mapping[str, int] | None = None
    """The figures of the last cleanup of `committerd maintain`; None if there was none."""
    left_alone: Sequence[Failure] = ()
    """What `committerd maintain` has failed to rewrite, and tries again later."""
    damaged: Sequence[str] = ()
    """Old versions that can't be read, a sentence each; committers leave them out."""

    def outcomes(self) -> Mapping[tuple[str, str], int]:
        """Number of outcomes in these versions, by status and reason."""
        found: Counter[tuple[str, str]] = Counter()
        for one in self.versions:
            found.update(one.outcomes)
        return dict(sorted(found.items()))


async def look_at_table(table: Table, newest: int) -> TableSummary:
    """Read the `newest` versions. Raises `StoreUnavailable`, `CorruptTable`, `UnsupportedTable`, `RefusedToRun`.

    Only a damaged latest version raises `CorruptTable`; a damaged old version doesn't hide the others.
    """
    found: dict[int, VersionSummary] = {}
    damaged: dict[int, str] = {}
    every = await table.shown_versions()
    versions = every[-newest:]

    async def read(version: int) -> None:
        try:
            one = await _state(table, version, is_latest=version == versions[-1])
        except CorruptTable as error:
            if version == versions[-1]:
                raise
            damaged[version] = f"version {version} is damaged, and left out by committers: {error}"
            return
        if one is not None:
            found[version] = one

    sampled = Concurrently(partial(sample, table, every))
    figures, failed = Concurrently(partial(read_figures, table.store)), Concurrently(partial(read_failed, table.store))
    read_all = partial(for_each, versions, read, at_once=_AT_ONCE)
    await sampled.of(partial(figures.of, partial(failed.of, read_all)))
    queue = sampled.required()
    return TableSummary(
        uri=table.uri,
        versions=[found[version] for version in sorted(found, reverse=True)],
        position=queue.position,
        pause=queue.pause,
        versions_in_all=len(every),
        maintenance=figures.required(),
        left_alone=failed.required().entries,
        damaged=[damaged[version] for version in sorted(damaged)],
    )


async def _state(table: Table, version: int, *, is_latest: bool) -> VersionSummary | None:
    """The state of a version; None if it has vanished, or if its transaction is damaged."""
    found = await table.skim_settled(version)
    if found is None:
        return None
    (outline, fragments, data_bytes), size, settled = found
    if is_latest or settled.ours:  # whatever is unreadable in an old version of another writer is ignored
        decode_position(outline.table_metadata, branch=outline.branch)
        decode_pause(outline.table_metadata, branch=outline.branch)
    return VersionSummary(
        version=version,
        timestamp_ms=to_ms(outline.timestamp),
        operation=settled.operation,
        from_queue=settled.ours,
        committed=len(settled.members),
        refused=len(settled.refusals),
        outcomes=_outcomes_of(settled),
        manifest_bytes=size,
        fragments=fragments,
        data_bytes=data_bytes,
    )


def _outcomes_of(settled: Settled) -> Counter[tuple[str, str]]:
    found = Counter((status_name(refusal.status), refusal.reason) for refusal in settled.refusals)
    if settled.members:
        found[Status.COMMITTED.value, ""] += len(settled.members)
    return found
