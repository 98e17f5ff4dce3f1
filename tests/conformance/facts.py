"""A version as plain JSON: all that a commit decides, and nothing about the layout of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from pyroaring import BitMap

from committerd.lance.format.fragment_reuse import ExternalContent, reuse_content
from committerd.lance.format.manifest_file import ManifestFile, decode
from committerd_common.deletion_file import decode_deletions
from committerd_common.messages import (
    DataFile,
    DataFragment,
    Field,
    FragmentReuseIndexDetails,
    IndexMetadata,
    Manifest,
)
from committerd_common.paths import deletion_key, parse_manifest_name
from committerd_common.row_ids import decode_row_ids, decode_versions

_ENCODINGS = {0: None, 1: "PLAIN", 2: "VAR_BINARY", 3: "DICTIONARY", 4: "RLE"}
_FIELD_TYPES = {0: "PARENT", 1: "REPEATED", 2: "LEAF"}
_FIELD_EXTRAS = (
    "extension_name",
    "unenforced_primary_key",
    "unenforced_primary_key_position",
    "unenforced_clustering_key",
    "unenforced_clustering_key_position",
)


def manifests(root: Path) -> dict[int, Path]:
    """Manifest files by version."""
    found = {}
    for path in (root / "_versions").glob("*"):
        name = parse_manifest_name(path.name)
        if name is not None:
            found[name.version] = path
    return found


def latest_facts(root: Path) -> dict[str, Any]:
    """The latest version. Lists whose order means nothing are sorted."""
    versions = manifests(root)
    file = decode(versions[max(versions)].read_bytes())
    manifest = file.manifest
    return {
        "version": manifest.version,
        "fields": [_field(field) for field in manifest.fields],
        "schema_metadata": _texts(manifest.schema_metadata),
        "fragments": [_fragment(root, fragment) for fragment in manifest.fragments],
        "max_fragment_id": manifest.max_fragment_id if manifest.HasField("max_fragment_id") else None,
        "next_row_id": manifest.next_row_id,
        "reader_feature_flags": manifest.reader_feature_flags,
        "writer_feature_flags": manifest.writer_feature_flags,
        "data_format": [manifest.data_format.file_format, manifest.data_format.version],
        "config": dict(manifest.config),
        "table_metadata": dict(manifest.table_metadata),
        "base_paths": _bases(manifest, root),
        "tag": manifest.tag,
        "branch": manifest.branch if manifest.HasField("branch") else None,
        "indices": _indices(file),
    }


def _texts(entries: Mapping[str, bytes]) -> dict[str, str]:
    return {key: value.decode() for key, value in entries.items()}


def _field(field: Field) -> dict[str, Any]:
    facts = {
        "id": field.id,
        "parent_id": field.parent_id,
        "name": field.name,
        "logical_type": field.logical_type,
        "nullable": field.nullable,
        "type": _FIELD_TYPES[field.type],
        "metadata": _texts(field.metadata),
    }
    if field.encoding:
        facts["encoding"] = _ENCODINGS[field.encoding]
    return facts | {name: getattr(field, name) for name in _FIELD_EXTRAS if getattr(field, name)}


def _data_file(file: DataFile) -> dict[str, Any]:
    facts = {
        "path": file.path,
        "fields": list(file.fields),
        "column_indices": list(file.column_indices),
        "version": f"{file.file_major_version}.{file.file_minor_version}",
        "size": file.file_size_bytes,
    }
    return facts | ({"base_id": file.base_id} if file.HasField("base_id") else {})


def _fragment(root: Path, fragment: DataFragment) -> dict[str, Any]:
    return {
        "id": fragment.id,
        "physical_rows": fragment.physical_rows,
        "files": [_data_file(file) for file in fragment.files],
        "deletion": _deletion(root, fragment),
        "row_ids": (
            list(decode_row_ids(fragment.inline_row_ids, fragment=fragment.id, staged=False))
            if fragment.HasField("inline_row_ids")
            else None
        ),
        "created_at": _versions(fragment, "inline_created_at_versions"),
        "last_updated_at": _versions(fragment, "inline_last_updated_at_versions"),
    }


def _deletion(root: Path, fragment: DataFragment) -> dict[str, Any] | None:
    if not fragment.HasField("deletion_file"):
        return None
    file = fragment.deletion_file
    path = root / deletion_key(fragment.id, file, staged=False)
    rows = decode_deletions(path.read_bytes(), fragment, staged=False) if path.exists() else None
    facts: dict[str, Any] = {
        "num_deleted": file.num_deleted_rows,
        "offsets": None if rows is None else list(rows),
    }
    return facts | ({"base_id": file.base_id} if file.HasField("base_id") else {})


def _versions(fragment: DataFragment, name: str) -> list[int] | None:
    """One version for each row."""
    if not fragment.HasField(name):  # type: ignore[arg-type]  # one of two names, both right
        return None
    runs = decode_versions(getattr(fragment, name), fragment=fragment.id, staged=False)
    return [run.version for run in runs for _ in range(run.rows)]


def _bases(manifest: Manifest, root: Path) -> list[list[Any]]:
    return sorted(
        [
            base.id,
            base.name if base.HasField("name") else None,
            base.is_dataset_root,
            base.path.replace(str(root), "{ROOT}"),
        ]
        for base in manifest.base_paths
    )


def _indices(file: ManifestFile) -> list[dict[str, Any]]:
    return in_order(_index(index) for index in file.indices)


def in_order(indices: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Indices in a canonical order."""
    return sorted(
        (dict(index) for index in indices),
        key=lambda index: (index["name"], index["fragment_bitmap"] or [], index["uuid"]),
    )


def _index(index: IndexMetadata) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": index.name,
        "uuid": str(UUID(bytes=index.uuid.uuid)),
        "fields": list(index.fields),
        "dataset_version": index.dataset_version,
        "fragment_bitmap": list(BitMap.deserialize(index.fragment_bitmap)) if index.fragment_bitmap else None,
        "details": index.index_details.type_url or None,
        "index_version": index.index_version if index.HasField("index_version") else None,
        "files": sorted([one.path, one.size_bytes] for one in index.files),
    }
    if index.HasField("base_id"):
        facts["base_id"] = index.base_id
    if index.covering_fields:
        facts["covering_fields"] = list(index.covering_fields)
    if index.name == "__lance_frag_reuse":
        facts["frag_reuse"] = _reuse(index)
    return facts


def _reuse(index: IndexMetadata) -> dict[str, Any]:
    content = reuse_content(index)
    if isinstance(content, ExternalContent):
        return {"content": "external"}
    return {
        "versions": [
            {
                "dataset_version": version.dataset_version,
                "groups": [
                    {
                        "old": [_digest(one) for one in group.old_fragments],
                        "new": [_digest(one) for one in group.new_fragments],
                        "changed_row_addrs_len": len(group.changed_row_addrs),
                    }
                    for group in version.groups
                ],
            }
            for version in content.versions
        ]
    }


def _digest(one: FragmentReuseIndexDetails.FragmentDigest) -> list[int]:
    return [one.id, one.physical_rows, one.num_deleted_rows]
