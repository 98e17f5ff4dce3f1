"""The program that wrote a version, and the Lance version of a table's writers."""

from __future__ import annotations

import pytest

from committerd.lance.format.writers import by_old_lance, lance_major, name_writer, own_lance_major
from committerd_common.messages import Manifest


def written_by(library: str, version: str, build: str = "") -> Manifest:
    return Manifest(writer_version=Manifest.WriterVersion(library=library, version=version, build_metadata=build))


@pytest.mark.parametrize(
    ("before", "build"),
    [
        (written_by("lance", "14.0.2"), "lance.14.0.2"),
        (written_by("lance", "4.0.0"), "lance.4.0.0"),
        (written_by("committerd", "0.9.0", "lance.4.0.0"), "lance.4.0.0"),
        (written_by("committerd", "0.9.0"), ""),
        (written_by("other", "4.0.0", "lance.4.0.0"), ""),
        (None, ""),
    ],
)
def test_the_lance_that_wrote_last_is_remembered(before: Manifest | None, build: str) -> None:
    made = Manifest()
    name_writer(made, "1.2.3", before)
    assert made.writer_version.library == "committerd"
    assert made.writer_version.version == "1.2.3"
    assert made.writer_version.build_metadata == build
    assert made.writer_version.HasField("build_metadata") == bool(build)


def test_what_lance_4_writes_is_made_as_it_makes_it() -> None:
    assert by_old_lance(written_by("lance", "4.0.0"))
    assert by_old_lance(written_by("committerd", "0.9.0", "lance.4.0.0"))
    assert not by_old_lance(written_by("lance", "5.0.0"))
    assert not by_old_lance(written_by("committerd", "0.9.0"))


@pytest.mark.parametrize(
    ("manifest", "table", "own"),
    [
        (written_by("lance", "14.0.2"), 14, 14),
        (written_by("committerd", "0.9.0", "lance.4.0.0"), 4, None),
        (written_by("committerd", "0.9.0", "rust.4.0.0"), None, None),
        (written_by("committerd", "0.9.0"), None, None),
        (written_by("other", "4.0.0"), None, None),
        (written_by("lance", "odd"), None, None),
        (written_by("lance", "9" * 5000), None, None),
        (Manifest(), None, None),
    ],
)
def test_the_major_version_of_lance(manifest: Manifest, table: int | None, own: int | None) -> None:
    assert lance_major(manifest) == table
    assert own_lance_major(manifest) == own
