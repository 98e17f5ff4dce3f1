"""The program that wrote a version, and the Lance that the writers of its table use."""

from __future__ import annotations

from committerd_common.messages import Manifest

OLD_LANCE_BEFORE = 5
"""If a Lance below this major version writes a table, the next version is built as 4.0.0 builds it, else as 14.0.2
does. Which version in between changed which behaviour is unknown; every reader understands what 14.0.2 writes.
"""

WRITER = "committerd"
LANCE = "lance"


def name_writer(manifest: Manifest, version: str, before: Manifest | None) -> None:
    """Name committerd, in this version, as the writer of the manifest. Changes `manifest`.

    The build metadata (`committerd 1.2.0+lance.14.0.2`) names the Lance that wrote the table last: some effects of an
    operation differ between versions of Lance, and a table should behave as with the Lance that its writers use.
    """
    lance = "" if before is None else _last_lance(before)
    manifest.writer_version.Clear()
    manifest.writer_version.library = WRITER
    manifest.writer_version.version = version
    if lance:
        manifest.writer_version.build_metadata = f"{LANCE}.{lance}"


def lance_major(manifest: Manifest) -> int | None:
    """Major version of the Lance that wrote this version, or wrote last before committerd did; None if unknown."""
    return _major(_last_lance(manifest))


def by_old_lance(manifest: Manifest) -> bool:
    """Whether to build the next version as Lance 4.0.0 does, where it differs from 14.0.2."""
    major = lance_major(manifest)
    return major is not None and major < OLD_LANCE_BEFORE


def own_lance_major(manifest: Manifest) -> int | None:
    """Major version of the Lance that wrote this very version; None if another program did."""
    writer = manifest.writer_version
    return _major(writer.version) if writer.library == LANCE else None


def _last_lance(manifest: Manifest) -> str:
    writer = manifest.writer_version
    if writer.library == LANCE:
        return writer.version
    prefix, _, version = writer.build_metadata.partition(".")
    return version if writer.library == WRITER and prefix == LANCE else ""


def _major(version: str) -> int | None:
    major = version.partition(".")[0]
    return int(major) if major.isdecimal() and len(major) < 10 else None
