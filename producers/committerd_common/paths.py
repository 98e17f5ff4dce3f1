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

The path of a data file is one segment of an object's key, as Lance's readers take it (object_store: PathPart): they
percent-encode what must not be in a segment, `/` and `%` too. Every key of such a file is made here.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote
from uuid import UUID

from committerd_common.backports import StrEnum
from committerd_common.malformed import MalformedError, blamed
from committerd_common.messages import DeletionFile

VERSIONS = "_versions/"
TRANSACTIONS = "_transactions/"
DELETIONS = "_deletions/"
INDICES = "_indices/"
DATA = "data/"

KEY_BYTES_MAX = 1024
"""Of an object's key on S3, the table's own path in the bucket included."""
COMPONENT_BYTES_MAX = 255
"""Of a file name on nearly all file systems, and on some S3 servers."""

VERSION_MAX = 2**63 - 1
"""The highest version of a history; above it they are detached."""

_U64_MAX = 2**64 - 1
_SUFFIX = {DeletionFile.ARROW_ARRAY: "arrow", DeletionFile.BITMAP: "bin"}
# Canonical decimals only: nothing writes others, and a name that we can't write back would be a
# version twice.
_MANIFEST = re.compile(r"(?:(?P<v1>0|[1-9][0-9]{0,18})|(?P<v2>[0-9]{20}))\.manifest")
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_STAGING = re.compile(rf"(?P<name>[^-]+)-(?P<uuid>{_UUID})")
_ENCODED = re.compile(r"""[^ -~]|[/\\{^}%`\]">\[~<#|*?]""")
"""Characters of which object_store encodes the bytes: those that are not ASCII or don't print, and some others."""
_DECODINGS_MAX = 4
"""Of one name. What is still encoded then was made to hide something."""
_SEPARATING = frozenset({"/", "\\", *map(chr, range(0x20)), "\x7f"})


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


def is_detached(version: int) -> bool:
    return version > VERSION_MAX


def transaction_name(read_version: int, uuid: str) -> str:
    """What `Manifest.transaction_file` holds."""
    return f"{read_version}-{uuid}.txn"


def transaction_key(name: str) -> str:
    return TRANSACTIONS + name


def object_name(name: str) -> str:
    """What Lance's readers call the object of this name: the name as one segment of a key.

    object_store: `impl From<&[u8]> for PathPart`.
    """
    if name in (".", ".."):
        return name.replace(".", "%2E")
    return _ENCODED.sub(_percent_encoded, name)


def leaves_its_folder(name: str) -> bool:
    """Whether someone who decodes this name of a file could look for it elsewhere than in its folder.

    That is: `.`, `..`, a name with a separator or a control character, nothing at all; plain, or percent-encoded any
    number of times.
    """
    for _ in range(_DECODINGS_MAX):
        if name in ("", ".", "..") or not _SEPARATING.isdisjoint(name):
            return True
        decoded = unquote(name, errors="replace")
        if decoded == name:
            return False
        name = decoded
    return True


def data_key(path: str) -> str:
    """Key of `DataFile.path`."""
    return DATA + object_name(path)


def index_file_key(uuid: bytes, path: str) -> str:
    """Key of `IndexFile.path`: relative to the index's folder, and already as its object is called."""
    return index_prefix(uuid) + path


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


def unstorable(path: str, room: int = KEY_BYTES_MAX) -> str:
    """Why no store has a file of this name; empty when one may. `room` is what is left of a key's bytes for it."""
    if not path.isprintable():
        return "it has characters that can't be printed, which stores and listings don't take"
    if len(path.encode()) > room:
        return f"it has {len(path.encode())} bytes, and only {room} fit behind the table's own path"
    longest = max(len(one.encode()) for one in path.split("/"))
    if longest > COMPONENT_BYTES_MAX:
        return f"a name in it has {longest} bytes; file systems take {COMPONENT_BYTES_MAX}"
    return ""


def key_room(uri: str) -> int:
    """Bytes that a table at this URI leaves of a key for what lies below its folder."""
    _, _, rest = uri.partition("://")
    _, _, prefix = rest.partition("/")
    return KEY_BYTES_MAX - len(prefix.encode()) - 1 if prefix else KEY_BYTES_MAX


def _percent_encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))
