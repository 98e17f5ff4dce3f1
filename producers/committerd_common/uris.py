"""URIs of tables and of base paths: whether two of them name the same place.

A producer names its table (header `dataset`), and the committer knows which one it serves. Spark, pylance and people
spell one place in several ways, so URIs are compared in a canonical form, which follows Lance's readers. Every function
here accepts any text.
"""

from __future__ import annotations

import functools
import posixpath
import re
from urllib.parse import unquote

from committerd_common.paths import leaves_its_folder

_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "azure": "az"}
_LOCAL_SCHEMES = ("file", "file-object-store")  # in Lance both are the local file system
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+")
"""At least two characters: one letter would be a drive."""


def canonical_uri(uri: str) -> str:
    """The canonical form of a table's URI: `s3a` and `s3n` become `s3`, `file:` forms become paths, percent-encoding is
    decoded, segments `.` and `..` are resolved, a slash at the end is cut. A text that is not a URI counts as a path.
    """
    scheme, place, query = _split(uri.strip())
    if not scheme:
        return _resolved(place)
    host, slash, path = place.partition("/")
    path = _resolved(slash + path) if slash else ""
    return f"{scheme}://{host}{'' if path == '/' else path}{query}"


def lance_uri(uri: str) -> str:
    """The URI in the form that pylance takes: it knows `s3`, and not the other names of that scheme."""
    scheme, colon, rest = uri.strip().partition(":")
    return f"{_SAME_SCHEME[scheme.lower()]}:{rest}" if colon and scheme.lower() in _SAME_SCHEME else uri


def local_folder(uri: str) -> str | None:
    """The folder of a table on a local disk; None for a table in another store."""
    folder = canonical_uri(uri)
    return None if "://" in folder else folder


def queue_name(uri: str) -> str:
    """The default name of a table's queue: the last part of its URI, without `.lance`."""
    return canonical_uri(uri).partition("?")[0].rpartition("/")[2].removesuffix(".lance")


def canonical_base(uri: str) -> str | None:
    """The canonical form (`canonical_uri`) of an absolute path or a URI outside the table; None for any other text.

    None too for a relative path, one with a segment `.` or `..`, percent-encoded or not (Lance's readers resolve
    `%2e%2e` as `..`), one that is encoded more than once, and one with a character that is not printable.
    """
    if not uri or not uri.isprintable() or uri != uri.strip() or "\\" in uri:
        return None
    scheme, place, query = _split(uri)
    if not scheme and not place.startswith("/"):
        return None
    if any(leaves_its_folder(segment) for segment in place.split("/") if segment):
        return None
    return f"{scheme}://{place}{query}" if scheme else place


def is_below(uri: str, base: str) -> bool:
    """Whether the canonical URI `uri` is that of `base` or lies below it. `base` may be in any form."""
    folder = canonical_uri(base)
    return uri == folder or uri.startswith(folder.rstrip("/") + "/")


def dataset_name(uri: str) -> str:
    """The name that a table's queue gets by default: the last part of the URI, without `.lance`."""
    return canonical_uri(uri).partition("?")[0].rpartition("/")[2].removesuffix(".lance")


def names_same_table(meant: str, *, served: str, aliases: tuple[str, ...]) -> bool:
    """Whether `meant` names the table at `served`, by its URI or one of the aliases.

    The plain URI of its objects names a table with an external manifest store too. The reverse is not true: a producer
    that names a manifest store would not see versions that are committed without it.
    """
    names = _names_of_table(served, aliases)
    return meant in names or canonical_uri(meant) in names


@functools.lru_cache(maxsize=16)
def _names_of_table(served: str, aliases: tuple[str, ...]) -> frozenset[str]:
    """The canonical names of a table. Cached: the keys come from settings, never from records."""
    return frozenset(name for uri in (served, *aliases) for name in _names(canonical_uri(uri)))


def may_be_one_table(uri: str, other: str) -> bool:
    """Whether two names that differ may still be of one table, as of a mount, or of an access point of a bucket.

    Not if the folders have different names, or are two places in one bucket.
    """
    (bucket, folder), (other_bucket, other_folder) = _bucket_and_folder(uri), _bucket_and_folder(other)
    return folder == other_folder and (not bucket or bucket != other_bucket)


def _bucket_and_folder(uri: str) -> tuple[str, str]:
    """(bucket, empty for a path; the last part of the name)."""
    _, mark, place = canonical_uri(uri).partition("?")[0].rpartition("://")
    return (place.partition("/")[0] if mark else "", place.rpartition("/")[2])


def _names(uri: str) -> tuple[str, ...]:
    if not uri.startswith("s3+ddb://"):
        return (uri,)
    place = uri.partition("?")[0]
    return (uri, place, place.replace("s3+ddb", "s3", 1))


def _split(uri: str) -> tuple[str, str, str]:
    """(scheme, place, query with its `?`) of a URI; the scheme is empty for a local path."""
    scheme, colon, rest = uri.partition(":")
    scheme = _SAME_SCHEME.get(scheme.lower(), scheme.lower())
    local = scheme in _LOCAL_SCHEMES
    if not colon or not _SCHEME.fullmatch(scheme) or not (local or rest.startswith("//")):
        return "", _trim(uri), ""
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    if local:
        path = _trim(unquote(slash + path))
        # A file on another host is not a local path.
        return ("", path, "") if host.lower() in ("", "localhost") else (scheme, host + path, "")
    path, mark, query = (slash + path).partition("?")
    path = _trim(unquote(path))
    return scheme, host + ("" if path == "/" else path), mark + query


def _resolved(path: str) -> str:
    """The path without segments `.` and `..`, as a URL has none in Lance, and as `os.path.abspath` makes it."""
    if path.startswith(".") or "/." in path:
        return posixpath.normpath(path)
    return path


def _trim(path: str) -> str:
    while "//" in path:
        path = path.replace("//", "/")
    return path.rstrip("/") or "/"
