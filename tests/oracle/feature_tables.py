"""Tables with a feature of Lance 14.0.2 that Lance 4.0.0 does not know: one generator for each feature flag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import lance
import pyarrow as pa
from lance.dataset import Index, LanceOperation
from lance.fragment import write_fragments

from committerd.lance.format.manifest_file import decode
from committerd_common.paths import NamingScheme, manifest_key

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


def covered_index(root: Path) -> None:
    """Flag 128: an index says that it holds the values of another column too."""
    lance.write_dataset(rows(0), str(root), data_storage_version="2.1")
    dataset: Any = lance.dataset(str(root))
    dataset.create_scalar_index("id", "BTREE", name="covering")
    (made,) = decode((root / manifest_key(2, NamingScheme.V2)).read_bytes()).indices
    covered: Any = {0}
    described = Index(
        uuid=str(UUID(bytes=made.uuid.uuid)), name=made.name, fields=[*made.fields, 1], covering_fields=[1],
        dataset_version=made.dataset_version, fragment_ids=covered, index_version=made.index_version,
        index_details=(made.index_details.type_url, made.index_details.value),
    )  # fmt: skip
    operation = LanceOperation.CreateIndex(new_indices=[described], removed_indices=[])
    lance.LanceDataset.commit(str(root), operation, read_version=2)


def mixed_versions(root: Path) -> None:
    """Flag 256: data files of several versions."""
    lance.write_dataset(rows(0), str(root), data_storage_version="2.0")
    lance.write_dataset(rows(100), str(root), mode="append", data_storage_version="2.2")


class Feature(NamedTuple):
    flag: int
    make: Callable[[Path], None]


KNOWN = [Feature(128, covered_index), Feature(256, mixed_versions)]
"""Those that committerd knows."""
UNKNOWN = [Feature(16384, managed_blobs), Feature(2048, spilled_lineage), Feature(64, overlays)]
FEATURES = [*KNOWN, *UNKNOWN]
