"""The invariants of a version, whatever operation made it.

`require_sound` checks the changed parts of every version before it is put; `require_sound_table` checks a whole version
that exists already. A violation is a bug in committerd or earlier damage, and nothing is written.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from functools import reduce

from pyroaring import BitMap64

from committerd.errors import CorruptTable
from committerd.lance.format.feature_flags import FeatureFlag
from committerd.lance.format.fragment_list import FragmentList, pack_fragments
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.support import has_stable_row_ids
from committerd.lance.format.wording import listed, quoted
from committerd.lance.versions.columns import fields_without_data
from committerd.lance.versions.next_version import NextVersion
from committerd_common.index_details import is_system_index
from committerd_common.messages import DataFragment, IndexMetadata, Manifest
from committerd_common.row_ids import check_versions, count_row_ids


def require_sound(current: ManifestFile | None, built: NextVersion) -> None:
    """Check that the version may follow `current`. It checks only changed fragments, and of these one of each kind.

    If `current` is sound, that is as strong as checking everything (`Chunk.samples` defines the kinds). Kept fragments
    are unchanged, byte for byte. The invariants of a single fragment (rows, files, bases, row ids) depend on nothing
    else that can change: bases are only added, and whether rows have stable ids is inherited. The invariants of all
    fragments together (ids are distinct and at most the counter, flags match) include the ids and facts of kept ones.

    Raises `CorruptTable`; the code is that of the first violated invariant, the message lists all.
    """
    outline, own = built.packed
    touched = _touched(built)
    violations = [
        *_counters(current.outline if current else None, outline),
        *_ids(outline, own, built.kept),
        *touched.found(_look_into(outline, row_versions=True)),
        *_flags(outline, deletions=built.kept.facts.has_deletions or own.facts.has_deletions),
        *_covering_flag(outline, built.indices),
        *_indices(built.indices),
        *_orphaned_indices(current, built),
        *_without_data(current, outline, touched),
    ]
    _raise(violations, built.manifest.version)


def require_sound_table(file: ManifestFile) -> None:
    """Check that a whole version is sound. Raises as `require_sound` does.

    The time is linear in fragments and in segments of row ids, and short if the fragments are of few kinds.
    """
    violations = [
        *_ids(file.outline, file.fragments),
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
        "required_field",
        "row_ids",
        "row_versions",
        "unknown_base",
    }
)
"""The codes of violations that a transaction can cause in a sound version; no producer causes the others."""

Violation = tuple[str, str]


def _raise(violations: Sequence[Violation], version: int) -> None:
    if violations:
        texts = listed([text for _, text in violations], "; ")
        raise CorruptTable(f"version {version} is not sound: {texts}", code=violations[0][0])


def _counters(current: Manifest | None, manifest: Manifest) -> Iterator[Violation]:
    """Check that the counters do not go down, so that no id is used twice."""
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


def _ids(manifest: Manifest, *lists: FragmentList) -> Iterator[Violation]:
    """Check that fragment ids are distinct in all lists together and not above the counter, and field ids distinct."""
    distinct = reduce(operator.or_, (some.facts.ids for some in lists))
    if len(distinct) != sum(map(len, lists)):
        times = Counter(fragment.id for some in lists for fragment in some)
        twice = sorted(one for one, number in times.items() if number > 1)
        yield "fragment_id_twice", f"fragment ids {twice} occur twice"
    if distinct and manifest.HasField("max_fragment_id") and distinct.max() > manifest.max_fragment_id:
        yield "max_fragment_id", f"fragment {distinct.max()} is above {manifest.max_fragment_id}"
    fields = [field.id for field in manifest.fields]
    if len(set(fields)) != len(fields):
        yield "field_id_twice", "a field id occurs twice in the schema"


def _touched(built: NextVersion) -> FragmentList:
    _, own = built.packed
    if built.touched is None or own.facts.ids <= BitMap64(built.touched):
        return own
    return pack_fragments(one for one in built.manifest.fragments if one.id in built.touched)


def _look_into(manifest: Manifest, *, row_versions: bool = False) -> Callable[[DataFragment], Iterator[Violation]]:
    """A function that finds the violations of a single fragment of this version."""
    bases, stable = {base.id for base in manifest.base_paths}, has_stable_row_ids(manifest)

    def look(fragment: DataFragment) -> Iterator[Violation]:
        yield from _fragment(fragment, bases=bases, stable=stable)
        if row_versions:
            yield from _row_versions(fragment)

    return look


def _fragment(fragment: DataFragment, *, bases: Set[int], stable: bool) -> Iterator[Violation]:
    name, files = f"fragment {fragment.id}", list(fragment.files)
    if not files:
        yield "fragment_without_files", f"{name} has no data file"
    if fragment.physical_rows == 0:
        yield "physical_rows_unknown", f"{name} does not say how many rows it has"
    used = {file.base_id for file in files if file.HasField("base_id")}
    if fragment.HasField("deletion_file"):
        deletions = fragment.deletion_file
        if not 0 < deletions.num_deleted_rows <= fragment.physical_rows:
            yield "deleted_rows", f"{name} has {deletions.num_deleted_rows} of {fragment.physical_rows} rows deleted"
        if deletions.HasField("base_id"):
            used.add(deletions.base_id)
    fields = [one for file in files for one in file.fields if one >= 0]
    if len(set(fields)) != len(fields):
        yield "field_twice_in_fragment", f"{name} has the data of the same field in two files"
    if used - bases:
        yield "unknown_base", f"{name} has files in bases {sorted(used - bases)}"
    yield from _row_ids(fragment, stable=stable)


def _row_ids(fragment: DataFragment, *, stable: bool) -> Iterator[Violation]:
    if stable != fragment.HasField("inline_row_ids"):
        has = "no row ids" if stable else "row ids"
        yield "row_ids", f"fragment {fragment.id} has {has} in a table that says otherwise"
    elif stable:
        try:
            count = count_row_ids(fragment.inline_row_ids, fragment=fragment.id, staged=False)
        except CorruptTable as error:
            yield error.code, str(error)
            return
        if count != fragment.physical_rows:
            yield (
                "row_ids",
                f"fragment {fragment.id} has {count} row ids for {fragment.physical_rows} rows",
            )


def _row_versions(fragment: DataFragment) -> Iterator[Violation]:
    """Check that the sequences of versions can be decoded, because the next update of these rows has to decode them."""
    sequences = (fragment.inline_created_at_versions, fragment.inline_last_updated_at_versions)
    for sequence in filter(None, sequences):
        try:
            check_versions(sequence, fragment=fragment.id, staged=False)
        except CorruptTable as error:
            yield error.code, str(error)


def _without_data(current: ManifestFile | None, outline: Manifest, touched: FragmentList) -> Iterator[Violation]:
    """Check that the changed fragments have data of all required fields; a fault that was there before stays."""
    if not touched.chunks:
        return
    look = fields_without_data(outline.fields)
    found = list(touched.found(lambda fragment: ((fragment.id, field) for field in look(fragment))))
    if not found:
        return
    look_before = fields_without_data(current.outline.fields if current is not None else ())
    before = {field.id for field in current.fragments.found(look_before)} if current is not None else set()
    for number, field in found:
        if field.id not in before:
            yield (
                "required_field",
                f"fragment {number} has no data of field {field.id} ({quoted(field.name)}), which can't be null",
            )


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


def _covering_flag(manifest: Manifest, indices: Sequence[IndexMetadata]) -> Iterator[Violation]:
    """Check flag 128, which pylance does not check in a version that it reads."""
    wanted = FeatureFlag.COVERED_INDICES if any(index.covering_fields for index in indices) else 0
    words = (manifest.reader_feature_flags, manifest.writer_feature_flags)
    if any(word & FeatureFlag.COVERED_INDICES != wanted for word in words):
        yield "feature_flags", "feature flag 128 does not match the indices"


def _indices(indices: Sequence[IndexMetadata]) -> Iterator[Violation]:
    uuids = [index.uuid.uuid for index in indices]
    if len(set(uuids)) != len(uuids):
        yield "index_uuid_twice", "an index occurs twice"
    if not all(len(uuid) == 16 for uuid in uuids):
        yield "index_uuid", "an index has a uuid that is not of 16 bytes"


def _orphaned_indices(current: ManifestFile | None, built: NextVersion) -> Iterator[Violation]:
    """Check that no index has lost its field. pylance leaves such indices, for example if a column is dropped while an
    index on it is built; an index that had lost its field before stays.
    """
    if current is None:
        return
    had = {field.id for field in current.outline.fields}
    has = {field.id for field in built.manifest.fields}
    kept = {index.uuid.uuid for index in current.indices}
    for index in built.indices:
        if is_system_index(index):
            continue  # Lance keeps it, whatever its fields are
        if index.uuid.uuid in kept and had.issuperset(index.fields) and not has.issuperset(index.fields):
            yield "index_field", f"index {index.name!r} is on fields that are gone"
