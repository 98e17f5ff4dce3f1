"""What must hold of a version, whatever operation made it.

`require_sound` is asked of every version before it is put, about what changed;
`require_sound_table` of a whole version, at start and in tests. A violation is a bug of ours or
damage done before us: nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from itertools import chain

from pyroaring import BitMap64

from committerd.errors import CorruptTable
from committerd.format.feature_flags import FeatureFlag
from committerd.format.fragment_list import FragmentList
from committerd.format.manifest_file import ManifestFile
from committerd.format.messages import DataFragment, IndexMetadata, Manifest
from committerd.format.row_ids import count_row_ids, decode_versions
from committerd.format.support import has_stable_row_ids
from committerd.rules.manifest import NextVersion


def require_sound(current: ManifestFile | None, built: NextVersion) -> None:
    """Return when the version may follow `current`. Looks at what changed.

    As strong as looking at all, given that `current` is sound. Fragments that were kept are there byte for byte, and
    what the invariants say of a single one (its rows, files, bases, row ids) hangs on nothing else that an operation
    changes without looking at all: bases are only added, and whether rows have ids is inherited. What they say of all
    together (ids are distinct and counted, flags match) is asked of the kept ones' ids and facts too.

    Raises `CorruptTable`; the code is the first violated invariant, the message has all.
    """
    violations = [
        *_counters(current.outline if current else None, built.manifest),
        *_ids([fragment.id for fragment in built.manifest.fragments], built.kept, built.manifest),
        *chain.from_iterable(map(_look_into(built.manifest), _touched(built))),
        *_row_versions(_touched(built)),
        *_flags(built.manifest, deletions=built.kept.facts.has_deletions or _has_deletions(built.manifest)),
        *_indices(built.indices),
        *_orphaned_indices(current, built),
    ]
    _raise(violations, built.manifest.version)


def require_sound_table(file: ManifestFile) -> None:
    """Return when a whole version is sound. Linear in fragments, but quick where all are of few kinds, and in row ids'
    segments. Raises as `require_sound`.
    """
    violations = [
        *_ids((), file.fragments, file.outline),
        *file.fragments.found(_look_into(file.outline)),
        *_flags(file.outline, deletions=file.fragments.facts.has_deletions),
        *_indices(file.indices),
    ]
    _raise(violations, file.version)


OF_CONTENT = frozenset(
    {
        "deleted_rows",
        "field_id_twice",
        "field_twice_in_fragment",
        "fragment_id_twice",
        "fragment_without_files",
        "index_uuid",
        "index_uuid_twice",
        "physical_rows_unknown",
        "row_ids",
        "row_versions",
        "unknown_base",
    }
)
"""Codes of what a transaction may bring into a sound version; the others are never a producer's doing."""

Violation = tuple[str, str]


def _raise(violations: Sequence[Violation], version: int) -> None:
    if violations:
        told = "; ".join(text for _, text in violations[:10])
        raise CorruptTable(f"version {version} is not sound: {told}", code=violations[0][0])


def _counters(current: Manifest | None, manifest: Manifest) -> Iterator[Violation]:
    """Ids that were given out are not given again."""
    if current is None:
        return
    if manifest.version != current.version + 1:
        yield "version_order", f"it follows version {current.version}"
    if manifest.max_fragment_id < current.max_fragment_id:
        yield (
            "fragment_id_reused",
            f"max_fragment_id went back from {current.max_fragment_id} to {manifest.max_fragment_id}",
        )
    if manifest.next_row_id < current.next_row_id:
        yield (
            "row_id_reused",
            f"next_row_id went back from {current.next_row_id} to {manifest.next_row_id}",
        )


def _ids(ids: Sequence[int], kept: FragmentList, manifest: Manifest) -> Iterator[Violation]:
    """`ids` are those of the fragments that are not in `kept`."""
    distinct = kept.facts.ids | BitMap64(ids)
    if len(distinct) != len(ids) + len(kept):
        times = Counter([*ids, *(fragment.id for fragment in kept)])
        twice = sorted(one for one, number in times.items() if number > 1)
        yield "fragment_id_twice", f"fragment ids {twice} occur twice"
    if distinct and manifest.HasField("max_fragment_id") and distinct.max() > manifest.max_fragment_id:
        yield "max_fragment_id", f"fragment {distinct.max()} is above {manifest.max_fragment_id}"
    fields = [field.id for field in manifest.fields]
    if len(set(fields)) != len(fields):
        yield "field_id_twice", "a field id occurs twice in the schema"


def _touched(built: NextVersion) -> Sequence[DataFragment]:
    if built.touched is None:
        return built.manifest.fragments
    return [one for one in built.manifest.fragments if one.id in built.touched]


def _look_into(manifest: Manifest) -> Callable[[DataFragment], Iterator[Violation]]:
    """What a single fragment of this version may break."""
    return partial(_fragment, bases={base.id for base in manifest.base_paths}, stable=has_stable_row_ids(manifest))


def _fragment(fragment: DataFragment, *, bases: Set[int], stable: bool) -> Iterator[Violation]:
    name = f"fragment {fragment.id}"
    if not fragment.files:
        yield "fragment_without_files", f"{name} has no data file"
    if fragment.physical_rows == 0:
        yield "physical_rows_unknown", f"{name} does not say how many rows it has"
    deleted = fragment.deletion_file.num_deleted_rows
    if fragment.HasField("deletion_file") and not 0 < deleted <= fragment.physical_rows:
        yield "deleted_rows", f"{name} has {deleted} of {fragment.physical_rows} rows deleted"
    fields = [one for file in fragment.files for one in file.fields if one >= 0]
    if len(set(fields)) != len(fields):
        yield "field_twice_in_fragment", f"{name} has the data of one field in two files"
    used = {file.base_id for file in fragment.files if file.HasField("base_id")}
    if fragment.deletion_file.HasField("base_id"):
        used.add(fragment.deletion_file.base_id)
    if used - bases:
        yield "unknown_base", f"{name} has files in bases {sorted(used - bases)}"
    yield from _row_ids(fragment, stable=stable)


def _row_ids(fragment: DataFragment, *, stable: bool) -> Iterator[Violation]:
    if stable != fragment.HasField("inline_row_ids"):
        has = "no row ids" if stable else "row ids"
        yield "row_ids", f"fragment {fragment.id} has {has} in a table that says otherwise"
    elif stable:
        count = count_row_ids(fragment.inline_row_ids, fragment=fragment.id, staged=False)
        if count != fragment.physical_rows:
            yield (
                "row_ids",
                f"fragment {fragment.id} has {count} row ids for {fragment.physical_rows} rows",
            )


def _row_versions(fragments: Sequence[DataFragment]) -> Iterator[Violation]:
    """They can be decoded: the next update of these rows has to."""
    for fragment in fragments:
        sequences = (fragment.inline_created_at_versions, fragment.inline_last_updated_at_versions)
        for sequence in filter(None, sequences):
            try:
                decode_versions(sequence, fragment=fragment.id, staged=False)
            except CorruptTable as error:
                yield error.code, str(error)


def _has_deletions(manifest: Manifest) -> bool:
    return any(fragment.HasField("deletion_file") for fragment in manifest.fragments)


def _flags(manifest: Manifest, *, deletions: bool) -> Iterator[Violation]:
    reader, writer = manifest.reader_feature_flags, manifest.writer_feature_flags
    for flag, wanted in (
        (FeatureFlag.DELETION_FILES, deletions),
        (FeatureFlag.BASE_PATHS, bool(manifest.base_paths)),
    ):
        if bool(reader & flag) != wanted or bool(writer & flag) != wanted:
            yield "feature_flags", f"feature flag {int(flag)} does not match the content"
    if bool(writer & FeatureFlag.TABLE_CONFIG) != bool(manifest.config):
        yield "feature_flags", "feature flag 8 does not match the content"


def _indices(indices: Sequence[IndexMetadata]) -> Iterator[Violation]:
    uuids = [index.uuid.uuid for index in indices]
    if len(set(uuids)) != len(uuids):
        yield "index_uuid_twice", "an index occurs twice"
    if not all(len(uuid) == 16 for uuid in uuids):
        yield "index_uuid", "an index has a uuid that is not of 16 bytes"


def _orphaned_indices(current: ManifestFile | None, built: NextVersion) -> Iterator[Violation]:
    """No index loses its field by our doing. pylance itself leaves some without, as when a column
    is dropped while an index on it is made; those stay.
    """
    if current is None:
        return
    had = {field.id for field in current.outline.fields}
    has = {field.id for field in built.manifest.fields}
    kept = {index.uuid.uuid for index in current.indices}
    for index in built.indices:
        if index.uuid.uuid in kept and had.issuperset(index.fields) and not has.issuperset(index.fields):
            yield "index_field", f"index {index.name!r} is on fields that are gone"
