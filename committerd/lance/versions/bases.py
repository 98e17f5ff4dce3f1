"""Base paths: other folders in which a table has files."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from committerd.errors import InvalidRequest, UnsupportedRequest
from committerd.lance.format.bounds import BASE_ID_MAX
from committerd.lance.format.wording import quoted
from committerd_common.messages import BasePath, Manifest
from committerd_common.paths import KEY_BYTES_MAX
from committerd_common.uris import canonical_base, is_below


def is_allowed_base(path: str, bases: Collection[str] | None) -> bool:
    """Whether the operator lets transactions name this base; `bases` as in `Allowed`."""
    if bases is None:
        return True
    canonical = canonical_base(path)
    return canonical is not None and any(is_below(canonical, base) for base in bases)


def require_allowed_base(where: str, path: str, bases: Collection[str] | None) -> None:
    """Check that a transaction may name this base in field `where`; `bases` as in `Allowed`.

    Raises `InvalidRequest` (`base_path`) or `UnsupportedRequest` (`base_not_allowed`).
    """
    if canonical_base(path) is None or len(path.encode()) > KEY_BYTES_MAX:
        raise InvalidRequest(
            f"{where} names {quoted(path)}; it needs an absolute path or a URI, without `.` or `..` "
            f"segments, plain or percent-encoded, of at most {KEY_BYTES_MAX} bytes",
            code="base_path",
        )
    if not is_allowed_base(path, bases):
        raise UnsupportedRequest(
            f"{where} names {path!r}, which is outside what the operator allows (setting allowed_bases)",
            code="base_not_allowed",
        )


def require_allowed_bases(where: str, named: Iterable[BasePath], bases: Collection[str] | None) -> None:
    """`require_allowed_base` for each of these bases."""
    for base in named:
        require_allowed_base(where, base.path, bases)


def require_known_bases(used: Collection[int], known: Collection[int]) -> None:
    """Check that all used bases are known; both are ids. Raises `InvalidRequest` (`unknown_base`)."""
    if unknown := sorted(set(used) - set(known)):
        raise InvalidRequest(
            f"files lie in bases {unknown}, which the table does not have; it has {sorted(known)}. Add them with "
            "UpdateBases first",
            code="unknown_base",
        )


def base_names(bases: Iterable[BasePath]) -> list[tuple[str, str]]:
    """The names of base paths, as `Operation.names` returns them."""
    return [("a base", base.name) for base in bases]


def next_base_id(manifest: Manifest) -> int:
    """The lowest id above those of all bases of a version, which has at least one.

    Raises `InvalidRequest` (`base_taken`) if no id is left.
    """
    highest = max(base.id for base in manifest.base_paths)
    if highest > BASE_ID_MAX:
        raise InvalidRequest(
            f"base {highest} has the highest id that a new base may follow: give the new base a free id",
            code="base_taken",
        )
    return highest + 1
