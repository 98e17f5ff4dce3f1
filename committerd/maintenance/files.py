"""Decides which files may be deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from committerd.maintenance.names import is_temporary, owner
from committerd_common.paths import VERSIONS, deletion_read_version, parse_manifest_name, parse_staging_name


class RemovalReason(StrEnum):
    """Why a file goes."""

    MANIFEST = "manifest"
    """It is the manifest of a version that is deleted."""
    VERSION = "version"
    """Only versions that are deleted name it."""
    UNNAMED = "unnamed"
    """No version and no waiting record names it: its transaction was refused, or never staged, or was committed in
    another form.
    """
    TEMPORARY = "temporary"
    """A writer that no longer runs has left it in the middle of a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of the table."""

    key: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUse:
    """Who names a file, by the name that `names.owner` gives it."""

    kept: bool = False
    """A version that stays names it, or a record that waits, or a record that was refused lately."""
    removed: bool = False
    """Versions that are deleted name it, and nothing else does."""
    promised: bool = False
    """An earlier run was about to delete it with its version when it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GracePeriod:
    """How long files stay that nothing names. Times are Unix milliseconds."""

    before_ms: int
    """They go only if they were last written before this."""
    deletions_before_ms: int
    """Deletion files go if they were last written before this, and the version that their writer read is gone."""
    is_gone: Callable[[int], bool]
    """Whether a version of the table is gone, or goes now."""

    def allows(self, file: File) -> bool:
        """Whether the file may go if nothing names it.

        No transaction can bring a deletion file whose read version is gone: nobody can plan a change against it any
        more. Transactions that share a version leave many of them, because the version has one file for all.
        """
        if file.modified_ms < self.before_ms:
            return True
        read_at = deletion_read_version(file.key) if file.modified_ms < self.deletions_before_ms else None
        return read_at is not None and self.is_gone(read_at)


def why(file: File, standing: FileUse, until: GracePeriod) -> RemovalReason | None:
    """Why the file goes; None if it stays."""
    if file.key.startswith(VERSIONS):
        return _why_of_version(file, until.before_ms)
    if owner(file.key) is None or standing.kept:
        return None
    if standing.removed or standing.promised:
        return RemovalReason.VERSION
    if not until.allows(file):
        return None
    return RemovalReason.TEMPORARY if is_temporary(file.key) else RemovalReason.UNNAMED


def _why_of_version(file: File, before_ms: int) -> RemovalReason | None:
    """A manifest goes with its version and never here; what a writer of manifests has left goes when it is old."""
    name = file.key.removeprefix(VERSIONS)
    if file.modified_ms >= before_ms or parse_manifest_name(name) is not None or "/" in name:
        return None
    return RemovalReason.TEMPORARY if is_temporary(file.key) or parse_staging_name(name) is not None else None
