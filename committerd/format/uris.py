"""When two URIs name the same table.

A producer says which table it meant (header `dataset`); the committer knows which one it serves. Spark, pylance and
people spell one place in several ways.
"""

from __future__ import annotations

import functools
from urllib.parse import unquote, urlsplit

_SAME_SCHEME = {"s3a": "s3", "s3n": "s3"}


def canonical_uri(uri: str) -> str:
    """One spelling of a table's URI: `s3a` and `s3n` are `s3`, `file:` forms are paths, decoded, no slash at the
    end.
    """
    uri = uri.strip()
    parts = urlsplit(uri)
    if len(parts.scheme) < 2:  # no scheme; one letter would be a drive
        return _trim(uri)
    scheme = _SAME_SCHEME.get(parts.scheme.lower(), parts.scheme.lower())
    path = _trim(unquote(parts.path))
    if scheme in ("file", "file-object-store"):
        return path
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{parts.netloc}{'' if path == '/' else path}{query}"


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


def _trim(path: str) -> str:
    while "//" in path:
        path = path.replace("//", "/")
    return path.rstrip("/") or "/"
