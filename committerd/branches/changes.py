"""What happened between two versions of a branch, in the frame of the main branch.

A fragment that existed when the branch began has the same id on main. One that was born on the branch and promoted
before has another id there; it is found by its data files.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from pyroaring import BitMap64

from committerd.branches.reference import plain_uri
from committerd.branches.refusal import PromotionRefused
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.own_keys import KEY_PREFIX
from committerd_common.messages import BasePath, DataFragment, Field, Manifest
from committerd_common.row_ids import (
    RowIds,
    VersionRun,
    decode_row_ids,
    decode_versions,
    encode_row_ids,
    encode_versions,
)
from committerd_common.uris import canonical_uri

_Value = TypeVar("_Value", str, bytes)
FileKey = tuple[tuple[str, int | None], ...]
"""Paths and base ids of the data files of a fragment."""


@dataclass(frozen=True, slots=True)
class Frame:
    """How the base paths of the branch are numbered on main."""

    bases: Mapping[int | None, int | None]
    """From the id on the branch to the id on main; None = the folder of the branch, or of the main table."""
    own: int
    """The id of the branch's folder on main."""

    def fragment(self, fragment: DataFragment) -> DataFragment:
        """A copy of a fragment of the branch with the base ids of main, without its deletion file and lineage."""
        moved = DataFragment(id=fragment.id, physical_rows=fragment.physical_rows, files=fragment.files)
        for file in moved.files:
            base = self.bases[file.base_id if file.HasField("base_id") else None]
            file.ClearField("base_id")
            if base is not None:
                file.base_id = base
        return moved

    def key(self, fragment: DataFragment) -> FileKey:
        """The data files of a fragment of the branch, as main names them."""
        return file_key(self.fragment(fragment))


def file_key(fragment: DataFragment) -> FileKey:
    """The data files of a fragment."""
    return tuple((file.path, file.base_id if file.HasField("base_id") else None) for file in fragment.files)


def frame_of(
    main: Sequence[BasePath], branch: Sequence[BasePath], *, table: str, folder: str, name: str
) -> tuple[Frame, BasePath | None]:
    """How the branch's base paths are numbered on main, and the base path that main lacks for it; None if it has it.

    `main`, `branch`: the base paths of both. `table`, `folder`: the URIs of the main table and of the branch. Raises
    `PromotionRefused` (`unknown_base`).
    """
    own, added = base_at(main, folder), None
    if own is None:
        taken = {base.name for base in main}
        label = next(one for one in _labels(name) if one not in taken)
        number = max((base.id for base in main), default=0) + 1
        added = BasePath(id=number, name=label, is_dataset_root=True, path=folder)
        own = number
    bases: dict[int | None, int | None] = {None: own}
    same = {(canonical_uri(base.path), base.is_dataset_root): base.id for base in main}
    roots = {canonical_uri(table), plain_uri(table)}
    for base in branch:
        place = (canonical_uri(base.path), base.is_dataset_root)
        if base.is_dataset_root and place[0] in roots:
            bases[base.id] = None
        elif place in same:
            bases[base.id] = same[place]
        else:
            raise PromotionRefused(
                f"the branch has files in base {base.id} at {base.path!r}, which main does not have; add it to main "
                "with UpdateBases first",
                code="unknown_base",
            )
    return Frame(bases, own), added


def base_at(bases: Sequence[BasePath], folder: str) -> int | None:
    """The id of the base path at this folder, a table's root; None if there is none."""
    place = canonical_uri(folder)
    return next((one.id for one in bases if one.is_dataset_root and canonical_uri(one.path) == place), None)


def _labels(name: str) -> Iterator[str]:
    yield f"branch {name}"
    count = 2
    while True:
        yield f"branch {name} {count}"
        count += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What happened to the fragments, the schema and the configuration."""

    removed: Sequence[DataFragment] = ()
    """Fragments of the earlier version that are gone."""
    changed: Sequence[tuple[DataFragment, DataFragment]] = ()
    """Fragments that differ: as they were, and as they are."""
    added: Sequence[DataFragment] = ()
    schema: Sequence[Field] | None = None
    """The new schema; None = it is as before."""
    config: Mapping[str, str | None] = field(default_factory=dict)
    """New values by key; None = the key is gone."""
    table_metadata: Mapping[str, str | None] = field(default_factory=dict)
    schema_metadata: Mapping[str, bytes | None] = field(default_factory=dict)

    @property
    def is_of_rows(self) -> bool:
        """Whether any fragment has changed."""
        return bool(self.removed or self.changed or self.added)

    @property
    def is_nothing(self) -> bool:
        settings = self.config or self.table_metadata or self.schema_metadata
        return not (self.is_of_rows or self.schema is not None or settings)


def changes_between(before: ManifestFile, after: ManifestFile) -> Changes:
    """What happened between two versions of a branch."""
    old = {fragment.id: fragment for fragment in before.fragments}
    changed, added = list[tuple[DataFragment, DataFragment]](), list[DataFragment]()
    for fragment in after.fragments:
        known = old.pop(fragment.id, None)
        if known is None:
            added.append(fragment)
        elif _content(known) != _content(fragment):
            changed.append((known, fragment))
    then, now = before.outline, after.outline
    return Changes(
        removed=list(old.values()),
        changed=changed,
        added=added,
        schema=None if _schema(then) == _schema(now) else list(now.fields),
        config=_difference(then.config, now.config),
        table_metadata=_difference(_of_users(then.table_metadata), _of_users(now.table_metadata)),
        schema_metadata=_difference(then.schema_metadata, now.schema_metadata),
    )


def _of_users(metadata: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in metadata.items() if not key.startswith(KEY_PREFIX)}


def _content(fragment: DataFragment) -> DataFragment:
    """What can change of a fragment, without the versions of its rows."""
    return DataFragment(
        physical_rows=fragment.physical_rows,
        files=fragment.files,
        deletion_file=fragment.deletion_file if fragment.HasField("deletion_file") else None,
    )


def same_schema(one: Manifest, other: Manifest) -> bool:
    """Whether two versions have the same fields."""
    return _schema(one) == _schema(other)


def _schema(manifest: Manifest) -> bytes:
    return Manifest(fields=manifest.fields).SerializeToString(deterministic=True)


def _difference(then: Mapping[str, _Value], now: Mapping[str, _Value]) -> dict[str, _Value | None]:
    different: dict[str, _Value | None] = {
        key: value for key, value in now.items() if key not in then or then[key] != value
    }
    return different | dict.fromkeys(then.keys() - now.keys())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIdsOfMain:
    """Which id a row of the branch gets on main."""

    kept_below: int
    """Ids below it were given out before the branch began: the row has the same id on main."""
    promoted: Mapping[int, int]
    """The ids on main of rows that were born on the branch and promoted before."""
    new_from: int
    """Ids from it on are of rows that main does not have."""
    shift: int
    """What is added to those."""

    def of(self, fragment: DataFragment) -> bytes:
        """The row ids of a fragment of the branch, as main has them. Raises `PromotionRefused` (`row_ids`)."""
        ids = decode_row_ids(fragment.inline_row_ids, fragment=fragment.id, staged=False)
        segments: list[range | array[int] | BitMap64] = []
        for segment in ids.segments:
            if isinstance(segment, range) and (segment.stop <= self.kept_below or not segment):
                segments.append(segment)
            elif isinstance(segment, range) and segment.start >= self.new_from:
                segments.append(range(segment.start + self.shift, segment.stop + self.shift))
            else:
                mapped = array("Q", (self._of(one, fragment.id) for one in segment))
                ascends = all(one < other for one, other in pairwise(mapped))
                segments.append(BitMap64(mapped) if ascends else mapped)
        return encode_row_ids(RowIds(tuple(segments)))

    def _of(self, row_id: int, fragment: int) -> int:
        if row_id < self.kept_below:
            return row_id
        if row_id >= self.new_from:
            return row_id + self.shift
        if row_id not in self.promoted:
            raise PromotionRefused(
                f"fragment {fragment} of the branch has the row with id {row_id}, which was promoted before, and main "
                "has rewritten it since",
                code="row_ids",
            )
        return self.promoted[row_id]


def same_row_ids(one: DataFragment, other: DataFragment) -> bool:
    """Whether two fragments have the same row ids in the same order, however they are encoded."""
    if one.inline_row_ids == other.inline_row_ids:
        return True
    from committerd_common.row_runs import equal

    return equal(*(decode_row_ids(each.inline_row_ids, fragment=each.id, staged=False).runs() for each in (one, other)))


def same_rows(branch: DataFragment, main: DataFragment, *, from_id: int) -> Iterator[tuple[int, int]]:
    """The ids on the branch and on main of the rows of one fragment, for ids from `from_id` on."""
    if branch.inline_row_ids == main.inline_row_ids:
        ids = decode_row_ids(branch.inline_row_ids, fragment=branch.id, staged=False)
        yield from ((one, one) for one in ids if one >= from_id)
        return
    ours = decode_row_ids(branch.inline_row_ids, fragment=branch.id, staged=False)
    theirs = decode_row_ids(main.inline_row_ids, fragment=main.id, staged=False)
    yield from ((one, other) for one, other in zip(ours, theirs, strict=True) if one >= from_id)


def versions_of_main(body: bytes, fragment: DataFragment, *, start: int, version: int) -> bytes:
    """The versions of the rows of a fragment, for main: those after the branch began count as `version`."""
    runs = decode_versions(body, fragment=fragment.id, staged=False) if body else []
    if not runs:
        return encode_versions([VersionRun(fragment.physical_rows, version)])
    return encode_versions(VersionRun(run.rows, run.version if run.version <= start else version) for run in runs)


def change_map(current: MutableMapping[str, _Value], changes: Mapping[str, _Value | None]) -> None:
    """Apply changes to a map, in place."""
    for key, value in changes.items():
        if value is not None:
            current[key] = value
        elif key in current:
            del current[key]
