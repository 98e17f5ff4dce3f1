"""Copies of a table in a temporary folder: one manifest that names the files of the table.

pylance reads such a copy as it reads the table, and may commit to it. So what is not committed yet can be read as if it
was. (pylance's own `shallow_clone` writes the clone of a table in a bucket to that bucket.)
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committerd_common.messages import IndexSection, Manifest
from committerd_common.paths import NamingScheme, manifest_key

if TYPE_CHECKING:
    from lance.file import LanceFileSession

_FOOTER = struct.Struct("<qhh4s")
"""The end of a manifest's file: position of the manifest, format, `LANC`."""
_FORMAT = (0, 2, b"LANC")
_LENGTH = struct.Struct("<I")
_BASE_PATHS = 16
"""The feature flag of a table that names files in other folders."""


def read_manifest(body: bytes) -> tuple[Manifest, IndexSection]:
    """The manifest and the indices in a manifest's file."""
    position, *_ = _FOOTER.unpack(body[-_FOOTER.size :])
    manifest, indices = Manifest.FromString(_section(body, position)), IndexSection()
    if manifest.HasField("index_section"):
        indices.ParseFromString(_section(body, manifest.index_section))
    return manifest, indices


def write_copy(copy: Path, manifest: Manifest, indices: IndexSection, *, source: str) -> None:
    """Write the manifest of a copy, whose files are those of the table at `source`.

    Changes `manifest` and `indices`.
    """
    manifest.reader_feature_flags |= _BASE_PATHS
    manifest.writer_feature_flags |= _BASE_PATHS
    base = max((one.id for one in manifest.base_paths), default=-1) + 1
    manifest.base_paths.add(id=base, is_dataset_root=True, path=source)
    name_data_files_at(manifest, source)
    _set_base(indices.indices, base)
    write_manifest(copy, manifest, indices)


def name_data_files_at(manifest: Manifest, source: str) -> None:
    """Let a copy of the table at `source` look there for all data files that have no other place."""
    base = next(one.id for one in reversed(manifest.base_paths) if one.path == source)
    for fragment in manifest.fragments:
        deletions = [fragment.deletion_file] if fragment.HasField("deletion_file") else []
        _set_base([*fragment.files, *deletions], base)


def write_manifest(copy: Path, manifest: Manifest, indices: IndexSection) -> None:
    """Write the manifest of a version of a copy."""
    for name in ("index_section", "transaction_section", "transaction_section_v14", "transaction_file"):
        manifest.ClearField(name)
    made = b""
    if indices.indices:
        manifest.index_section = 0
        made = _with_length(indices.SerializeToString())
    target = copy / manifest_key(manifest.version, NamingScheme.V2)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(made + _with_length(manifest.SerializeToString()) + _FOOTER.pack(len(made), *_FORMAT))


def manifest_file(table: LanceFileSession, version: int, folder: Path) -> bytes:
    """The manifest's file of a version of a table. `folder`: for a temporary file."""
    key = manifest_key(version, NamingScheme.V2)
    if not table.contains(key):
        key = manifest_key(version, NamingScheme.V1)
    local = folder / "source.manifest"
    table.download_file(key, local)
    return local.read_bytes()


def place_of_objects(uri: str) -> str:
    """Where the objects of a table are, as a base path names them."""
    if uri.startswith("s3+ddb://"):
        return uri.partition("?")[0].replace("s3+ddb", "s3", 1)
    return uri if "://" in uri else os.path.abspath(uri)


def _set_base(named: Iterable[Any], base: int) -> None:
    """Set this base for those that are in the table's own folder."""
    for one in named:
        if not one.HasField("base_id"):
            one.base_id = base


def _section(body: bytes, position: int) -> bytes:
    start = position + _LENGTH.size
    return body[start : start + _LENGTH.unpack(body[position:start])[0]]


def _with_length(section: bytes) -> bytes:
    return _LENGTH.pack(len(section)) + section
