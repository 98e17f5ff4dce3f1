"""Where things lie in a table's folder. Keys are relative to it, with `/` between segments.

    data/{path}                                     data files
    _deletions/{fragment}-{read version}-{id}.bin   deletion files, or .arrow
    _indices/{uuid}/                                one folder for each index
    _transactions/{read version}-{uuid}.txn         transaction files
    _versions/{name}.manifest                       one manifest for each version

Two schemes name manifests. V1 is the decimal version. V2 is 2^64 - 1 - version with 20 digits, so
that a listing in byte order begins with the latest. A table has one scheme, that of its latest
manifest. Detached versions have bit 63 set and names of their own; they are no part of the
history.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from committerd.format.malformed import MalformedError, blamed
from committerd.format.messages import BasePath, DeletionFile

VERSIONS = "_versions/"
TRANSACTIONS = "_transactions/"
DELETIONS = "_deletions/"
INDICES = "_indices/"
DATA = "data/"

VERSION_MAX = 2**63 - 1
"""The highest version of a history; above it they are detached."""

_U64_MAX = 2**64 - 1
_SUFFIX = {DeletionFile.ARROW_ARRAY: "arrow", DeletionFile.BITMAP: "bin"}
# Canonical decimals only: nothing writes others, and a name that we can't write back would be a
# version twice.
_MANIFEST = re.compile(r"(?:(?P<v1>0|[1-9][0-9]{0,18})|(?P<v2>[0-9]{20}))\.manifest")
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_STAGING = re.compile(rf"(?P<name>[^-]+)-(?P<uuid>{_UUID})")


class NamingScheme(StrEnum):
    """How a table names its manifests."""

    V1 = "v1"
    V2 = "v2"


class ManifestName(NamedTuple):
    """What a manifest's name says."""

    version: int
    scheme: NamingScheme


def manifest_name(version: int, scheme: NamingScheme) -> str:
    """File name of a version's manifest; `version` is at most `VERSION_MAX`."""
    if not 0 <= version <= VERSION_MAX:
        raise ValueError(f"{version} is no version of a history")
    if scheme is NamingScheme.V1:
        return f"{version}.manifest"
    return f"{_U64_MAX - version:020}.manifest"


def manifest_key(version: int, scheme: NamingScheme) -> str:
    return VERSIONS + manifest_name(version, scheme)


def parse_manifest_name(name: str) -> ManifestName | None:
    """Version and scheme of a file in `_versions`; None for all that is no version of the history.

    That is: detached versions, staged manifests, leftovers of interrupted writes, the version hint.
    """
    found = _MANIFEST.fullmatch(name)
    if found is None:
        return None
    if found["v1"] is not None:
        parsed = ManifestName(int(found["v1"]), NamingScheme.V1)
    else:
        parsed = ManifestName(_U64_MAX - int(found["v2"]), NamingScheme.V2)
    return parsed if 0 <= parsed.version <= VERSION_MAX else None


def staging_name(version: int, scheme: NamingScheme, uuid: str) -> str:
    """Name under which a manifest waits until the external manifest store has its entry.

    It does not end in `manifest`, so listings pass over it.
    """
    return f"{manifest_name(version, scheme)}-{uuid}"


def parse_staging_name(name: str) -> ManifestName | None:
    """Version and scheme of a staged manifest; None when the name is none."""
    found = _STAGING.fullmatch(name)
    return parse_manifest_name(found["name"]) if found else None


def detached_key(version: int) -> str:
    """Key of a detached version, which has bit 63 set."""
    if not VERSION_MAX < version <= _U64_MAX:
        raise ValueError(f"{version} is no detached version")
    return f"{VERSIONS}d{version}.manifest"


def is_detached(version: int) -> bool:
    return version > VERSION_MAX


def transaction_name(read_version: int, uuid: str) -> str:
    """What `Manifest.transaction_file` holds."""
    return f"{read_version}-{uuid}.txn"


def transaction_key(name: str) -> str:
    return TRANSACTIONS + name


def data_key(path: str) -> str:
    """Key of `DataFile.path`."""
    return DATA + path


def deletion_key(fragment_id: int, file: DeletionFile, *, staged: bool) -> str:
    """Raises when the file is of a type that we don't know: `InvalidRequest` when it is staged,
    `CorruptTable` when it is in the table.
    """
    suffix = _SUFFIX.get(file.file_type)
    with blamed(f"fragment {fragment_id}", code="deletion_file_type", staged=staged):
        if suffix is None:
            raise MalformedError(f"its deletion file is of type {file.file_type}, unknown to us")
    return f"{DELETIONS}{fragment_id}-{file.read_version}-{file.id}.{suffix}"


def index_prefix(uuid: bytes) -> str:
    """Folder of an index, by the 16 bytes of `IndexMetadata.uuid`."""
    return f"{INDICES}{UUID(bytes=uuid)}/"


def uri_in_base(base: BasePath, key: str) -> str:
    """Full URI of what would have `key` in the table's own folder, but lies in another base.

    A base that is no table's folder holds the files directly: `data/x` is `{path}/x`.
    """
    inside = key if base.is_dataset_root else key.partition("/")[2]
    return f"{base.path.rstrip('/')}/{inside}"
