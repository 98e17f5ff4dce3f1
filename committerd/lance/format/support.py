"""Support: whether committerd may write on top of a version.

A writer that does not know a feature breaks it without noticing, so everything unknown is refused. So are tables of old
writers that lack facts which only their data files have. The error lists all faults at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from pyroaring import BitMap64

from committerd.errors import CorruptTable, UnsupportedTable
from committerd.lance.format.bounds import FRAGMENT_ID_MAX
from committerd.lance.format.feature_flags import CARRIED, LACKING, SUPPORTED, FeatureFlag, bits
from committerd.lance.format.fragment_list import FragmentList
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.wording import listed
from committerd_common.index_details import FRAGMENT_REUSE_INDEX
from committerd_common.messages import DataFragment, DeletionFile, IndexSection, Manifest
from committerd_common.unknown_fields import unknown_fields

DATA_FORMATS = ("2.0", "2.1", "2.2", "2.3")

_GUARDS = frozenset({"fragment_tree", "max_allocated_field_id", "clustering", "max_clustering_id"})
DELETION_FILE_TYPES = frozenset(DeletionFile.DeletionFileType.values())
"""The types of deletion files that Lance knows."""


class _Fault(NamedTuple):
    code: str
    text: str


def require_supported(file: ManifestFile) -> None:
    """Check that the next version may be built from this one.

    Raises `UnsupportedTable` (`feature_flags`, `unknown_fields`, `newer_manifest`, `data_format`,
    `writer_version_missing`, `physical_rows_unknown`, `deleted_rows_unknown`, `deletion_file_type`,
    `external_sequences`, `fragment_reuse_version`) or, for content that no writer may produce,
    `CorruptTable` (`feature_flags_unpaired`, `fragment_id_twice`, `fragment_id_too_large`,
    `row_ids_missing`, `row_ids_without_flag`, `index_uuid`). A table that needs an unknown feature is
    unsupported, never corrupt. The code is that of the first fault; the message lists the first ten.
    The time is linear in the number of fragments, and short if they are of few kinds.
    """
    outline = file.outline
    where = f"version {outline.version} can't be built upon"
    unknown = list(_unknown_features(outline))
    # Unknown features come first, because they decide what a table must contain: without row ids in the manifest a
    # table is corrupt, unless a flag says that they are stored elsewhere.
    corrupt = (
        []
        if unknown
        else [
            *_unpaired_flags(outline),
            *_corrupt_ids(file.fragments),
            *file.fragments.found(partial(_corrupt_row_ids, stable=has_stable_row_ids(outline))),
            *_corrupt_indices(file.index_section),
        ]
    )
    if corrupt:
        raise CorruptTable(_message(where, corrupt), code=corrupt[0].code)
    unsupported = [
        *unknown,
        *_unsupported_manifest(outline),
        *file.fragments.found(_unsupported_fragment),
        *_unsupported_indices(file.index_section),
        *(
            _Fault("unknown_fields", f"committerd does not know {path}")
            for path in (*_unknown_in_manifest(file), *unknown_fields(file.index_section))
        ),
    ]
    if unsupported:
        raise UnsupportedTable(_message(where, unsupported), code=unsupported[0].code)


def has_stable_row_ids(manifest: Manifest) -> bool:
    """Whether every row keeps an id of its own through compactions and updates (feature flag 2)."""
    flags = manifest.reader_feature_flags | manifest.writer_feature_flags
    return bool(flags & FeatureFlag.STABLE_ROW_IDS)


def external_sequences(fragment: DataFragment) -> list[str]:
    """The fields of a fragment that name a separate file with row ids or row versions."""
    present = (
        fragment.WhichOneof("row_id_sequence"),
        fragment.WhichOneof("last_updated_at_version_sequence"),
        fragment.WhichOneof("created_at_version_sequence"),
    )
    return [field for field in present if field is not None and field.startswith("external_")]


def _message(where: str, faults: list[_Fault]) -> str:
    return f"{where}: {listed([fault.text for fault in faults], '; ')}"


def _unpaired_flags(manifest: Manifest) -> Iterator[_Fault]:
    # pylance 14.0.2 calls a table corrupt if such a bit is in one word only.
    unpaired = (manifest.reader_feature_flags ^ manifest.writer_feature_flags) & CARRIED
    for bit in bits(unpaired):
        yield _Fault("feature_flags_unpaired", f"feature flag {bit} is in only one of the two words")


def _unknown_in_manifest(file: ManifestFile) -> list[str]:
    return unknown_fields(file.manifest if file.fragments.facts.has_unknown_fields else file.outline)


def _corrupt_ids(fragments: FragmentList) -> Iterator[_Fault]:
    if fragments.facts.ascending and fragments.last_id <= FRAGMENT_ID_MAX:
        return
    seen = BitMap64()
    for fragment in fragments:
        if fragment.id in seen:
            yield _Fault("fragment_id_twice", f"two fragments have id {fragment.id}")
        seen.add(fragment.id)
        if fragment.id > FRAGMENT_ID_MAX:
            yield _Fault("fragment_id_too_large", f"fragment id {fragment.id} exceeds 32 bits")


def _corrupt_row_ids(fragment: DataFragment, *, stable: bool) -> Iterator[_Fault]:
    has_row_ids = fragment.WhichOneof("row_id_sequence") is not None
    if stable and not has_row_ids:
        yield _Fault(
            "row_ids_missing",
            f"fragment {fragment.id} has no row ids in a table with stable row ids",
        )
    if has_row_ids and not stable:
        yield _Fault(
            "row_ids_without_flag",
            f"fragment {fragment.id} has row ids in a table without feature flag 2",
        )


def _corrupt_indices(section: IndexSection) -> Iterator[_Fault]:
    for index in section.indices:
        if len(index.uuid.uuid) != 16:
            yield _Fault("index_uuid", f"index {index.name!r} has a uuid that is not of 16 bytes")


def _unknown_features(manifest: Manifest) -> Iterator[_Fault]:
    flags = manifest.reader_feature_flags | manifest.writer_feature_flags
    names = {flag.value: f" ({flag.name.lower()})" for flag in FeatureFlag}
    reasons = {flag.value: f": {reason}" for flag, reason in LACKING.items()}
    for bit in bits(flags & ~SUPPORTED):
        yield _Fault("feature_flags", f"it needs feature flag {bit}{names.get(bit, '')}{reasons.get(bit, '')}")
    for field, _ in manifest.ListFields():
        if field.name in _GUARDS:
            yield _Fault("newer_manifest", f"Manifest.{field.name} (field {field.number}) is set")


def _unsupported_manifest(manifest: Manifest) -> Iterator[_Fault]:
    if manifest.data_format.version not in DATA_FORMATS:
        # 0.1 included: its manifests may hold column values at fixed positions in the file.
        yield _Fault(
            "data_format",
            f"its data files have format {manifest.data_format.version!r}; committerd writes on "
            f"{', '.join(DATA_FORMATS)}",
        )
    if not manifest.writer_version.library:
        # Lance recounts all fragments of such a table at its next commit, which needs data files.
        yield _Fault(
            "writer_version_missing",
            "it does not say what wrote it; any commit of pylance repairs that",
        )


def _unsupported_fragment(fragment: DataFragment) -> Iterator[_Fault]:
    if fragment.physical_rows == 0:
        yield _Fault(
            "physical_rows_unknown",
            f"fragment {fragment.id} does not say how many rows it has; any commit of pylance repairs that",
        )
    if fragment.HasField("deletion_file"):
        yield from _unsupported_deletions(fragment)
    for sequence in external_sequences(fragment):
        yield _Fault("external_sequences", f"fragment {fragment.id} has its {sequence} in a separate file")


def _unsupported_deletions(fragment: DataFragment) -> Iterator[_Fault]:
    deletions = fragment.deletion_file
    if deletions.num_deleted_rows == 0:
        yield _Fault(
            "deleted_rows_unknown",
            f"fragment {fragment.id} does not say how many rows are deleted; any commit of pylance repairs that",
        )
    if deletions.file_type not in DELETION_FILE_TYPES:
        yield _Fault(
            "deletion_file_type",
            f"the deletion file of fragment {fragment.id} has type {deletions.file_type}, which committerd does not "
            "know",
        )


def _unsupported_indices(section: IndexSection) -> Iterator[_Fault]:
    for index in section.indices:
        if index.name == FRAGMENT_REUSE_INDEX and index.index_version > 0:
            yield _Fault(
                "fragment_reuse_version",
                f"index {index.name} has version {index.index_version}; committerd knows version 0",
            )
