"""One version of a table as maintenance sees it: sizes of fragments, and what the indices cover."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyroaring import BitMap

from committerd_client.staging.transactions import read_table
from committerd_common.messages import DataFragment

if TYPE_CHECKING:
    import lance

_SYSTEM_PREFIX = "__lance_"
"""Indices with such names are Lance's own bookkeeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentState:
    """One fragment."""

    id: int
    rows: int
    """Rows in its files, deleted ones included."""
    deleted: int
    bytes: int
    """Total size of its data files, as far as the manifest has their sizes."""
    covered_by: frozenset[str] = frozenset()
    """The uuids of the index segments that cover it."""

    @property
    def live(self) -> int:
        return self.rows - self.deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexState:
    """One index, which consists of one or more segments."""

    name: str
    segments: int
    unindexed_rows: int
    """Live rows of fragments that no segment covers; queries scan these rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """One version of a table."""

    version: int
    fragments: tuple[FragmentState, ...]
    """In the order of their ids."""
    indices: tuple[IndexState, ...] = ()

    @property
    def rows(self) -> int:
        """Live rows."""
        return sum(one.live for one in self.fragments)

    @property
    def bytes(self) -> int:
        """Total size of the data files."""
        return sum(one.bytes for one in self.fragments)

    @property
    def unindexed_rows(self) -> int:
        """The unindexed rows of the index that has most."""
        return max((one.unindexed_rows for one in self.indices), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One segment of an index."""

    name: str
    uuid: str
    covers: BitMap
    """Ids of fragments, some of which may be gone."""


def table_state(version: int, fragments: Iterable[DataFragment], segments: Iterable[Segment]) -> TableState:
    """The state of the version with these fragments and index segments."""
    segments = [one for one in segments if not one.name.startswith(_SYSTEM_PREFIX)]
    states = tuple(sorted((_fragment(one, segments) for one in fragments), key=lambda one: one.id))
    by_name: dict[str, list[Segment]] = {}
    for segment in segments:
        by_name.setdefault(segment.name, []).append(segment)
    return TableState(
        version=version,
        fragments=states,
        indices=tuple(_index(name, by_name[name], states) for name in sorted(by_name)),
    )


def read_state(dataset: lance.LanceDataset) -> TableState:
    """The state of the version at which the dataset is open. Reads the indices' descriptions, and no data.

    Raises `StagingError` for a branch, a detached version, and a table that this client does not know.
    """
    segments = [
        Segment(name=index.name, uuid=str(segment.uuid), covers=BitMap(segment.fragment_ids))
        for index in dataset.describe_indices()
        for segment in index.segments
    ]
    table = read_table(dataset)
    return table_state(table.version, table.fragments(), segments)


def _fragment(given: DataFragment, segments: Iterable[Segment]) -> FragmentState:
    return FragmentState(
        id=given.id,
        rows=given.physical_rows,
        deleted=given.deletion_file.num_deleted_rows if given.HasField("deletion_file") else 0,
        bytes=sum(file.file_size_bytes for file in given.files),
        covered_by=frozenset(one.uuid for one in segments if given.id in one.covers),
    )


def _index(name: str, segments: list[Segment], fragments: Iterable[FragmentState]) -> IndexState:
    own = {one.uuid for one in segments}
    return IndexState(
        name=name,
        segments=len(segments),
        unindexed_rows=sum(one.live for one in fragments if own.isdisjoint(one.covered_by)),
    )
