"""Tables with a feature of Lance 14.0.2 that committerd does not know: one generator for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import lance
import pyarrow as pa
from lance.dataset import LanceOperation
from lance.fragment import write_fragments

OVERLAYS = "LANCE_ENABLE_UNSTABLE_DATA_OVERLAY_FILES"
"""The environment variable with which pylance 14.0.2 reads and writes data overlays."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("t", pa.utf8())])


def rows(start: int, count: int = 100) -> pa.Table:
    return pa.table(
        {"id": range(start, start + count), "t": [f"t{one}" for one in range(start, start + count)]}, SCHEMA
    )


def managed_blobs(root: Path) -> None:
    """Flag 16384: the schema's metadata asks for managed blobs."""
    schema = SCHEMA.with_metadata({"lance.blob.managed": "true"})
    lance.write_dataset(rows(0).cast(schema), str(root))


def spilled_lineage(root: Path) -> None:
    """Flag 2048: an update writes the rows' lineage to a data file."""
    lance.write_dataset(rows(0), str(root), enable_stable_row_ids=True)
    lance.write_dataset(rows(100), str(root), mode="append")
    table = lance.dataset(str(root))
    table.update_config({"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "0"})
    lance.dataset(str(root)).update({"t": "'u'"}, where="id % 3 = 0")


def overlays(root: Path) -> None:
    """Flag 64: values of a fragment lie in an overlay. Needs `OVERLAYS` in the environment."""
    lance.write_dataset(rows(0), str(root))
    table = lance.dataset(str(root))
    lance.LanceDataset.commit(table, overlay(root), read_version=table.version)


def overlay(root: Path) -> LanceOperation.DataOverlay:
    """The operation that gives the rows 1 and 3 of the first fragment new texts."""
    other = root.with_name(f"{root.name}-overlay")
    (fragment,) = write_fragments(pa.table({"t": ["x", "y"]}), str(other))
    (file,) = fragment.files
    (other / "data" / file.path).rename(root / "data" / file.path)
    file.fields = [1]
    one = LanceOperation.DataOverlayFile(file, [1, 3])
    return LanceOperation.DataOverlay([LanceOperation.DataOverlayGroup(0, [one])])


class Feature(NamedTuple):
    flag: int
    make: Callable[[Path], None]


FEATURES = [Feature(16384, managed_blobs), Feature(2048, spilled_lineage), Feature(64, overlays)]


@contextmanager
def overlays_enabled() -> Iterator[None]:
    before = os.environ.get(OVERLAYS)
    os.environ[OVERLAYS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OVERLAYS]
        else:
            os.environ[OVERLAYS] = before
