"""URIs of tables and of base paths: when two of them name the same place.

A producer says which table it meant (header `dataset`); the committer knows which one it serves. Spark, pylance and
people spell one place in several ways. What is compared is always the canonical spelling, as Lance's readers resolve
it. Every function here takes any text.
"""

from __future__ import annotations

import functools
import re
from urllib.parse import unquote

from committerd_common.paths import leaves_its_folder

_SAME_SCHEME = {"s3a": "s3", "s3n": "s3"}
_LOCAL_SCHEMES = ("file", "file-object-store")  # Lance: both are the local file system
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+")
"""Of at least two characters: one letter would be a drive."""


def canonical_uri(uri: str) -> str:
    """One spelling of a table's URI: `s3a` and `s3n` are `s3`, `file:` forms are paths, decoded, no slash at the
    end. A text that is no URI is a path.
    """
    scheme, place, query = _split(uri.strip())
    return f"{scheme}://{place}{query}" if scheme else place


def canonical_base(uri: str) -> str | None:
    """One spelling of a full path or URI outside the table, as `canonical_uri`; None when it is none.

    That is: a relative path, one with `.` or `..` among its segments, percent-encoded or not (Lance's readers resolve
    `%2e%2e` as `..`), one that is encoded more than once, and one with a character that does not print.
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
    """Whether a canonical URI is that of `base`, which any spelling names, or of something in it."""
    folder = canonical_uri(base)
    return uri == folder or uri.startswith(folder.rstrip("/") + "/")


@functools.lru_cache(maxsize=256)
def names_same_table(meant: str, *, served: str, aliases: tuple[str, ...]) -> bool:
    """Whether `meant` is the table at `served`, or one of its other names.

    A table with an external manifest store is meant by the plain URI of its objects too, but not the other way round:
    who names a manifest store would not see what is committed without it.
    """
    return canonical_uri(meant) in {name for uri in (served, *aliases) for name in _names(canonical_uri(uri))}


def _names(uri: str) -> tuple[str, ...]:
    if not uri.startswith("s3+ddb://"):
        return (uri,)
    place = uri.partition("?")[0]
    return (uri, place, place.replace("s3+ddb", "s3", 1))


def _split(uri: str) -> tuple[str, str, str]:
    """(scheme, place, query with its `?`) of a URI; the scheme is empty for a path of this machine."""
    scheme, colon, rest = uri.partition(":")
    scheme = _SAME_SCHEME.get(scheme.lower(), scheme.lower())
    local = scheme in _LOCAL_SCHEMES
    if not colon or not _SCHEME.fullmatch(scheme) or not (local or rest.startswith("//")):
        return "", _trim(uri), ""
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    if local:
        path = _trim(unquote(slash + path))
        # Another machine's files are not those of this one.
        return ("", path, "") if host.lower() in ("", "localhost") else (scheme, host + path, "")
    path, mark, query = (slash + path).partition("?")
    path = _trim(unquote(path))
    return scheme, host + ("" if path == "/" else path), mark + query


def _trim(path: str) -> str:
    while "//" in path:
        path = path.replace("//", "/")
    return path.rstrip("/") or "/"
