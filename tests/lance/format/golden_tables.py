"""Tables that pylance 4.0.0 and 14.0.2 wrote, see `golden/write_golden.py`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from committerd.lance.format.manifest_file import ManifestFile, decode
from committerd_common.messages import DataFragment
from committerd_common.paths import NamingScheme, deletion_key, manifest_key

GOLDEN = Path(__file__).resolve().parent / "golden"
TABLES = ("plain", "many_deletions", "rebased_delete", "stable_row_ids", "fragment_reuse")
WRITERS = ("4.0.0", "14.0.2")

both_writers = pytest.mark.parametrize("writer", WRITERS)


@cache
def facts(writer: str) -> dict[str, dict[str, Any]]:
    """What pylance read: by table and version."""
    found: dict[str, dict[str, Any]] = json.loads((GOLDEN / writer / "facts.json").read_text())
    return found


def manifest_bytes(writer: str, table: str, version: int) -> bytes:
    return (GOLDEN / writer / table / manifest_key(version, NamingScheme.V2)).read_bytes()


def manifest_file(writer: str, table: str, version: int) -> ManifestFile:
    return decode(manifest_bytes(writer, table, version))


def deletion_bytes(writer: str, table: str, fragment: DataFragment) -> bytes:
    key = deletion_key(fragment.id, fragment.deletion_file, staged=False)
    return (GOLDEN / writer / table / key).read_bytes()


def every_version() -> list[tuple[str, str, int]]:
    """(writer, table, version) of all manifests."""
    return [(writer, table, int(version)) for writer in WRITERS for table in TABLES for version in facts(writer)[table]]
