"""The keys of a table's files. Keys are relative to the table's folder, with `/` between segments.

    data/{path}                                     data files
    _deletions/{fragment}-{read version}-{id}.bin   deletion files, or .arrow
    _indices/{uuid}/                                one folder for each index
    _transactions/{read version}-{uuid}.txn         transaction files
    _versions/{name}.manifest                       one manifest for each version

There are two naming schemes for manifests. V1 is the version in decimal. V2 is 2^64 - 1 - version with 20 digits, so
that a listing in byte order begins with the latest version. A table has one scheme, that of its latest manifest.
Detached versions have bit 63 set and names of another form; they are not part of the history.

Lance's readers treat the path of a data file as one segment of a key (object_store: PathPart): they percent-encode the
characters that a segment must not have, `/` and `%` too. This module makes every key of such a file.
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
VERSION_HINT = f"{VERSIONS}latest_version_hint.json"
"""Where Lance notes the latest version, `{"version":7}`, in stores whose listings have no order. It may be outdated."""

KEY_BYTES_MAX = 1024
"""The length limit of a key on S3, which includes the table's own path in the bucket."""
COMPONENT_BYTES_MAX = 255
"""The length limit of a file name on nearly all file systems, and of a key's segment on some S3 servers."""

VERSION_MAX = 2**63 - 1
"""The highest version number of a history; higher ones are detached versions."""

_U64_MAX = 2**64 - 1
_SUFFIX = {DeletionFile.ARROW_ARRAY: "arrow", DeletionFile.BITMAP: "bin"}
# Canonical decimals only: no writer uses other forms, and a second name for a number would be a second manifest of one
# version.
_MANIFEST = re.compile(r"(?:(?P<v1>0|[1-9][0-9]{0,18})|(?P<v2>[0-9]{20}))\.manifest")
_DELETION_KEY = re.compile(
    rf"{re.escape(DELETIONS)}[0-9]{{1,20}}-(?P<read_version>[0-9]{{1,20}})-[0-9]{{1,20}}\.(?:{'|'.join(_SUFFIX.values())})"
)
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_STAGING = re.compile(rf"(?P<name>[^-]+)-(?P<uuid>{_UUID})")
_ENCODED = re.compile(r"""[^ -~]|[/\\{^}%`\]">\[~<#|*?]""")
"""The characters that object_store percent-encodes: those that are not printable ASCII, and some others."""
_DECODINGS_MAX = 4
"""The number of times that a name is decoded. A name that is still encoded after that was made to hide something."""
_SEPARATING = frozenset({"/", "\\", *map(chr, range(0x20)), "\x7f"})


class NamingScheme(StrEnum):
    """The scheme by which a table names its manifests."""

    V1 = "v1"
    V2 = "v2"


class ManifestName(NamedTuple):
    """The version and the scheme in a manifest's name."""

    version: int
    scheme: NamingScheme


def manifest_name(version: int, scheme: NamingScheme) -> str:
    """The file name of a version's manifest. Raises `ValueError` for a version above `VERSION_MAX` or below 0."""
    if not 0 <= version <= VERSION_MAX:
        raise ValueError(f"{version} is not a version of a history")
    if scheme is NamingScheme.V1:
        return f"{version}.manifest"
    return f"{_U64_MAX - version:020}.manifest"


def manifest_key(version: int, scheme: NamingScheme) -> str:
    return VERSIONS + manifest_name(version, scheme)


def parse_manifest_name(name: str) -> ManifestName | None:
    """The version and scheme of a file in `_versions`; None for a file that is not a version of the history.

    Such files are detached versions, staged manifests, leftovers of interrupted writes, and the version hint.
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
    """The name of a staged manifest, before the external manifest store has its entry.

    It does not end in `manifest`, so listings of versions skip it.
    """
    return f"{manifest_name(version, scheme)}-{uuid}"


def parse_staging_name(name: str) -> ManifestName | None:
    """The version and scheme of a staged manifest; None if the name is not one of a staged manifest."""
    found = _STAGING.fullmatch(name)
    return parse_manifest_name(found["name"]) if found else None


def is_detached(version: int) -> bool:
    return version > VERSION_MAX


def transaction_name(read_version: int, uuid: str) -> str:
    """The name of a transaction file, as in `Manifest.transaction_file`."""
    return f"{read_version}-{uuid}.txn"


def transaction_key(name: str) -> str:
    return TRANSACTIONS + name


def object_name(name: str) -> str:
    """The name as one segment of a key, encoded as Lance's readers do.

    Source: object_store, `impl From<&[u8]> for PathPart`.
    """
    if name in (".", ".."):
        return name.replace(".", "%2E")
    return _ENCODED.sub(_percent_encoded, name)


def leaves_its_folder(name: str) -> bool:
    """Whether a reader that decodes this file name could look for the file outside of its folder.

    True for the empty name, `.`, `..`, and names with a separator or a control character, whether plain or
    percent-encoded any number of times.
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
    """The key of the data file with this `DataFile.path`."""
    return DATA + object_name(path)


def index_file_key(uuid: bytes, path: str) -> str:
    """The key of the index file with this `IndexFile.path`, which is relative to the index's folder and not encoded
    further.
    """
    return index_prefix(uuid) + path


def deletion_key(fragment_id: int, file: DeletionFile, *, staged: bool) -> str:
    """The key of a fragment's deletion file.

    Raises `InvalidRequest` (if `staged`) or else `CorruptTable`, with code `deletion_file_type`, for an unknown type.
    """
    suffix = _SUFFIX.get(file.file_type)
    with blamed(f"fragment {fragment_id}", code="deletion_file_type", staged=staged):
        if suffix is None:
            raise MalformedError(f"its deletion file is of type {file.file_type}, unknown to us")
    return f"{DELETIONS}{fragment_id}-{file.read_version}-{file.id}.{suffix}"


def deletion_read_version(key: str) -> int | None:
    """The version that the writer of this deletion file read, as its name says; None for the key of another file."""
    found = _DELETION_KEY.fullmatch(key)
    return None if found is None else int(found["read_version"])


def index_prefix(uuid: bytes) -> str:
    """The folder of an index; `uuid` are the 16 bytes of `IndexMetadata.uuid`."""
    return f"{INDICES}{UUID(bytes=uuid)}/"


def unstorable(path: str, room: int = KEY_BYTES_MAX) -> str:
    """The reason why no store can hold a file with this path; empty if one can.

    `room` is the number of bytes that the path may have in a key (`key_room`).
    """
    if not path.isprintable():
        return "it has characters that can't be printed, which stores and listings don't take"
    if len(path.encode()) > room:
        return f"it has {len(path.encode())} bytes, and only {room} fit behind the table's own path"
    longest = max(len(one.encode()) for one in path.split("/"))
    if longest > COMPONENT_BYTES_MAX:
        return f"a name in it has {longest} bytes; file systems take {COMPONENT_BYTES_MAX}"
    return ""


def key_room(uri: str) -> int:
    """The number of bytes of a key that a table at this URI leaves for paths below its folder."""
    _, _, rest = uri.partition("://")
    _, _, prefix = rest.partition("/")
    return KEY_BYTES_MAX - len(prefix.encode()) - 1 if prefix else KEY_BYTES_MAX


def _percent_encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))
