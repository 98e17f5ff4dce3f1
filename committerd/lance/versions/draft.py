"""The draft of the next version, which every operation changes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from pyroaring import BitMap64

from committerd import __version__
from committerd.errors import InvalidRequest
from committerd.lance.format.bounds import FRAGMENT_ID_MAX, RESERVABLE_MAX, RESERVED_MAX
from committerd.lance.format.feature_flags import CARRIED, FeatureFlag
from committerd.lance.format.fragment_list import NO_FRAGMENTS, FragmentList
from committerd.lance.format.fragment_reuse import Content
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.own_keys import KEY_PREFIX
from committerd.lance.format.support import has_stable_row_ids
from committerd.lance.format.timestamps import END_OF_CALENDAR_NS, to_ns
from committerd.lance.format.writers import by_old_lance, name_writer
from committerd.lance.versions.fragments import (
    drop_dead_files,
    drop_tombstoned_files,
    has_other_file_version,
    live_rows,
    next_fragment_id,
    remove_fragments,
    with_new_ids,
)
from committerd.lance.versions.indices import KeepsEmpty, retained, reuse_applied
from committerd.lance.versions.lineage import (
    assign_row_ids,
    require_free_row_ids,
    require_known_row_ids,
    stamp_new_rows,
)
from committerd.lance.versions.primary_key import key_fault
from committerd_common.messages import DataFragment, Field, IndexMetadata, Manifest, Timestamp

FILE_FORMAT = "lance"
DATA_FORMAT_DEFAULT = "2.0"
"""The data format of a table that is created without data files and without `data_storage_version`: every reader since
2.0 knows it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOptions:
    """Options for a new table, from the header `create-options`."""

    enable_stable_row_ids: bool = False
    enable_v2_manifest_paths: bool = True
    data_storage_version: str | None = None
    """None = the version of the data files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildInput:
    """The input of a build, apart from the current version and the transaction."""

    now: datetime
    ahead_max: timedelta | None = None
    """The longest time after `now` at which the version may be dated, to be later than the version before it; None =
    any.
    """
    transaction_file: str
    """The name of the transaction file in `_transactions/`."""
    index_uuid: bytes = b""
    """16 bytes: the uuid of an index that the build itself creates."""
    create: CreateOptions = CreateOptions()
    restored: ManifestFile | None = None
    """The version that a Restore names."""
    source: ManifestFile | None = None
    """The version of another table that a Clone names."""
    reuse: Content | None = None
    """The content of the current version's fragment reuse index."""
    moves: Sequence[tuple[int, frozenset[int]]] = ()
    """For an Update of several members: for each, in order, the number of its new fragments and the fragments that it
    takes rows from. Empty = it has one member.
    """
    table_metadata: Mapping[str, str] = field(default_factory=dict)
    """Entries that replace all entries whose key begins with `committerd.`; empty = those stay."""


@dataclass(slots=True, kw_only=True)
class Draft:
    """A version that is being built. Operations change it in place; its messages belong to it.

    Its fragments are in `manifest` and in `kept`. An operation opens a fragment of the current version (`open`) before
    it looks at it or changes it. All others stay as they are, byte for byte.
    """

    manifest: Manifest
    """Its `fragments` are the fragments that were opened or added."""
    indices: list[IndexMetadata]
    """The messages are shared with the current version: operations replace them with copies, and never change them."""
    current: ManifestFile | None
    given: BuildInput
    kept: FragmentList = NO_FRAGMENTS
    """Fragments of the current version that were not opened, in ascending order of their ids."""
    touched: set[int] | None = field(default_factory=set)
    """The ids of the fragments that are new or changed; None = any fragment may be."""

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def has_stable_row_ids(self) -> bool:
        return has_stable_row_ids(self.manifest)

    @property
    def by_old_lance(self) -> bool:
        """Whether an old Lance, such as 4.0.0, wrote the current version; then the build does as that Lance does."""
        return self.current is not None and by_old_lance(self.current.outline)

    def fragment_ids(self) -> BitMap64:
        """The ids of all fragments."""
        return self.kept.facts.ids | BitMap64(fragment.id for fragment in self.manifest.fragments)

    def missing(self, ids: Iterable[int]) -> list[int]:
        """The ids that no fragment has, ascending."""
        has = self.fragment_ids()
        return sorted(one for one in ids if one not in has)

    def next_fragment_id(self) -> int:
        return next_fragment_id(self.manifest, self.kept)

    def open(self, ids: Iterable[int]) -> None:
        """Decode the fragments with these ids, as far as they exist, and the other fragments of the same chunks."""
        self.kept, taken = self.kept.without(ids)
        for chunk in taken:
            self.manifest.MergeFromString(chunk.body)

    def open_all(self) -> None:
        """Decode every fragment."""
        for body in self.kept.bodies():
            self.manifest.MergeFromString(body)
        self.kept = NO_FRAGMENTS

    def drop_fragments(self) -> None:
        """Remove all fragments."""
        self.manifest.ClearField("fragments")
        self.kept = NO_FRAGMENTS

    def fresh(
        self, fragments: Sequence[DataFragment], *, chosen: bool = True, moved: bool = False
    ) -> list[DataFragment]:
        """Copies with new fragment ids, and with row ids if the table has stable ones. Raises both counters.

        `moved` says that rows with an id were in the table before; otherwise all rows are new. `chosen` says that a
        fragment keeps its id if no fragment ever had it. Raises `InvalidRequest` (`fragment_ids_exhausted`, `row_ids`).
        """
        fresh = with_new_ids(fragments, self.next_fragment_id(), chosen=chosen)
        drop_tombstoned_files(fresh)
        if fresh:
            self.spend_ids(max(one.id for one in fresh))
        if self.has_stable_row_ids:
            next_row_id = self.manifest.next_row_id
            if moved:
                require_known_row_ids(fresh, next_row_id)
            else:
                next_row_id = require_free_row_ids(fresh, next_row_id)
            self.manifest.next_row_id = assign_row_ids(fresh, next_row_id)
        return fresh

    def spend_ids(self, last: int) -> None:
        """Mark all fragment ids up to `last` as used. Raises `InvalidRequest` (`fragment_ids_exhausted`)."""
        if last > FRAGMENT_ID_MAX:
            raise InvalidRequest(
                f"fragment id {last} does not fit in 32 bits; copy the table into a new one, where ids begin at 0",
                code="fragment_ids_exhausted",
            )
        self.manifest.max_fragment_id = max(self.manifest.max_fragment_id, last)

    def reserve_ids(self, last: int) -> None:
        """Like `spend_ids`, for ids that come without rows.

        Its limit is lower: such ids cost their producer nothing, and producers of rows need ids too.
        """
        before = self.manifest.max_fragment_id
        if last > before + RESERVED_MAX or (last > before and last > RESERVABLE_MAX):
            raise InvalidRequest(
                f"it needs fragment ids up to {last}, and the highest given out is {before}: one transaction may "
                f"reserve {RESERVED_MAX}, and ids above {RESERVABLE_MAX} can't be reserved. Reserve fewer; if a "
                "table has no ids left, copy it into a new one, where ids begin at 0",
                code="fragment_ids_exhausted",
            )
        self.spend_ids(last)

    def add(self, fragments: Iterable[DataFragment]) -> None:
        """Add the fragments that have rows. The id of a fragment without rows counts as used too, as in Lance."""
        added = [one for one in fragments if live_rows(one) > 0]
        self.manifest.fragments.extend(added)
        self.touch(one.id for one in added)

    def add_new_rows(self, fragments: Sequence[DataFragment], *, chosen: bool = True) -> None:
        """Add fragments whose rows are all new; `chosen` as in `fresh`."""
        fresh = self.fresh(fragments, chosen=chosen)
        if self.has_stable_row_ids:
            stamp_new_rows(fresh, self.version)
        self.add(fresh)

    def touch(self, ids: Iterable[int]) -> None:
        """Note that these fragments are new or changed."""
        if self.touched is not None:
            self.touched.update(ids)

    def keep_useful_indices(self) -> None:
        """Drop the indices that are useless for the draft's schema and fragments (`indices.retained`)."""
        keeps = KeepsEmpty.SCALAR if self.by_old_lance else KeepsEmpty.ALL
        self.indices = retained(self.indices, self.manifest.fields, self.fragment_ids(), keeps=keeps)

    def set_schema(self, schema: Iterable[Field]) -> None:
        """Replace the schema. Raises `InvalidRequest` (`schema`) if it breaks the primary key."""
        kept = Manifest(fields=schema)
        fault = key_fault(kept.fields)
        if fault and not key_fault(self.manifest.fields):
            raise InvalidRequest(
                f"with this schema {fault}, and pylance could not read the table. Make the column required, or take it "
                "out of the primary key",
                code="schema",
            )
        self.manifest.ClearField("fields")
        self.manifest.MergeFrom(kept)

    def set_schema_metadata(self, entries: Mapping[str, bytes]) -> None:
        """Replace the metadata of the schema."""
        self.manifest.schema_metadata.clear()
        for key, value in entries.items():
            self.manifest.schema_metadata[key] = value


def next_draft(current: ManifestFile, given: BuildInput) -> Draft:
    """The draft from which an operation on the current version starts. Lance: Manifest::new_from_previous.

    It has known fields only. An unknown field may hold flags or positions that are wrong for the next version, and
    readers would trust them. So the caller checks a version with `require_supported` first.
    """
    manifest = Manifest()
    manifest.CopyFrom(current.outline)
    manifest.version += 1
    for name in ("tag", "index_section", "transaction_section", "transaction_section_v14"):
        manifest.ClearField(name)
    indices = list(current.indices)
    if given.reuse is not None:
        indices = reuse_applied(indices, given.reuse)
    set_writer(manifest, given, current.outline)
    draft = Draft(manifest=manifest, indices=indices, current=current, given=given, kept=current.fragments)
    if not _has_ascending_ids(current):
        draft.open_all()
    return draft


def first_draft(given: BuildInput, version: int = 1) -> Draft:
    """The draft of a table's first version."""
    manifest = Manifest(version=version)
    manifest.data_format.file_format = FILE_FORMAT
    manifest.data_format.version = given.create.data_storage_version or DATA_FORMAT_DEFAULT
    if given.create.enable_stable_row_ids:
        manifest.reader_feature_flags = FeatureFlag.STABLE_ROW_IDS
        manifest.writer_feature_flags = FeatureFlag.STABLE_ROW_IDS
    set_writer(manifest, given, None)
    return Draft(manifest=manifest, indices=[], current=None, given=given)


def finish(draft: Draft, changed: Collection[int] = ()) -> None:
    """Complete the version: remove fragments without rows, order the rest, set counters and flags.

    `changed` are the ids of the fragments that an operation replaced or edited.
    """
    manifest = draft.manifest
    draft.touch(changed)
    if changed:
        edited = [fragment for fragment in manifest.fragments if fragment.id in changed]
        drop_dead_files(edited, {field.id for field in manifest.fields})
        remove_fragments(manifest, {one.id for one in edited if live_rows(one) <= 0})
    _keep_order(draft)
    set_own_metadata(manifest, draft.given.table_metadata)
    _set_flags(manifest, draft.kept, draft.indices)


def _set_flags(manifest: Manifest, kept: FragmentList, indices: Iterable[IndexMetadata]) -> None:
    """Set both words of feature flags from the content. Lance: feature_flags.rs, apply_feature_flags.

    The flag of stable row ids is inherited, because the content of a table without fragments does not show it. Kept
    fragments need no look for other file versions: the current version has the flag if they have any.
    """
    both = manifest.reader_feature_flags & CARRIED
    if not both and has_other_file_version(manifest.fragments, manifest.data_format.version):
        both |= FeatureFlag.MIXED_FILE_VERSIONS
    if has_stable_row_ids(manifest):
        both |= FeatureFlag.STABLE_ROW_IDS
    if kept.facts.has_deletions or any(fragment.HasField("deletion_file") for fragment in manifest.fragments):
        both |= FeatureFlag.DELETION_FILES
    if manifest.base_paths:
        both |= FeatureFlag.BASE_PATHS
    if any(index.covering_fields for index in indices):
        both |= FeatureFlag.COVERED_INDICES
    manifest.reader_feature_flags = both
    manifest.writer_feature_flags = both | (FeatureFlag.TABLE_CONFIG if manifest.config else 0)


def own_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """The entries that belong to committerd."""
    return {key: value for key, value in metadata.items() if key.startswith(KEY_PREFIX)}


def set_writer(manifest: Manifest, given: BuildInput, before: Manifest | None) -> None:
    """Name committerd as the writer of the manifest, and set its time and its transaction file."""
    name_writer(manifest, __version__, before)
    manifest.transaction_file = given.transaction_file
    now = Timestamp()
    now.FromDatetime(given.now)
    later = 0 if before is None else to_ns(before.timestamp) + 1000
    ahead = math.inf if given.ahead_max is None else given.ahead_max.total_seconds() * 1e9
    # Writers' clocks differ, and cleanup by age assumes that a later version has a later time. But a version of a
    # writer whose clock was far ahead must not move the times of all later ones: cleanup would keep them that long.
    if 0 < later - now.ToNanoseconds() <= ahead and later < END_OF_CALENDAR_NS:
        now.FromNanoseconds(later)
    manifest.timestamp.CopyFrom(now)


def _has_ascending_ids(current: ManifestFile) -> bool:
    """Whether fragment ids ascend and none is above the counter, so that new fragments come after all others."""
    outline, fragments = current.outline, current.fragments
    counted = not outline.HasField("max_fragment_id") or outline.max_fragment_id >= fragments.last_id
    return counted and fragments.facts.ascending


def _keep_order(draft: Draft) -> None:
    """Sort the fragments by id, ascending, and mark the highest id as used.

    A rewritten fragment may have an id that was reserved before other fragments got higher ones. Then the chunk whose
    range includes that id is opened, so that no kept chunk overlaps with the ids of the other fragments.
    """
    manifest = draft.manifest
    ids = [fragment.id for fragment in manifest.fragments]
    if ids and draft.kept.chunks and min(ids) <= draft.kept.last_id:
        draft.open(ids)
        ids = [fragment.id for fragment in manifest.fragments]
    if any(one > next_one for one, next_one in pairwise(ids)):
        manifest.fragments.sort(key=lambda fragment: fragment.id)
    last = max(max(ids, default=-1), draft.kept.last_id)
    if last >= 0:
        draft.spend_ids(last)


def set_own_metadata(manifest: Manifest, entries: Mapping[str, str]) -> None:
    """Replace all table metadata of committerd by these entries; empty = it stays."""
    if not entries:
        return
    for key in own_metadata(manifest.table_metadata):
        del manifest.table_metadata[key]
    manifest.table_metadata.update(entries)
