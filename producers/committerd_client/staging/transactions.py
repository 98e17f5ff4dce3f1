"""What all staged transactions share: a uuid, properties, and the version that they were read at."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from committerd_client.headers import Staged
from committerd_client.staging.errors import StagingError
from committerd_common.messages import Field, Manifest, Transaction
from committerd_common.unknown_fields import unknown_fields

if TYPE_CHECKING:
    import lance

RESERVED_PREFIX = "committerd."
"""Keys and properties that begin so are the committer's."""
_STABLE_ROW_IDS = 2  # Lance: feature_flags.rs
_DETACHED = 1 << 63  # Lance: versions from here on belong to no history
_BLOB = "lance-encoding:blob"


def new_uuid() -> str:
    """For a transaction: lower case with hyphens."""
    return str(uuids.uuid4())


def new_transaction(
    read_version: int, *, uuid: str | None = None, properties: Mapping[str, str] | None = None
) -> Transaction:
    """Without an operation. Raises `StagingError` for properties that are the committer's."""
    reserved = [key for key in properties or () if key.startswith(RESERVED_PREFIX)]
    if reserved:
        raise StagingError(
            f"property {reserved[0]!r}: names that begin with {RESERVED_PREFIX!r} are the committer's",
            code="reserved_property",
        )
    return Transaction(
        read_version=read_version, uuid=uuid or new_uuid(), transaction_properties=dict(properties or {})
    )


@dataclass(frozen=True, slots=True)
class ReadTable:
    """The version of a table at which a dataset is open: what a change is planned against."""

    manifest: Manifest
    read_uuid: str | None = field(init=False)
    """Of the transaction that made the version."""

    def __post_init__(self) -> None:
        # "4-0b8f...e13.txn": read version and uuid. Lance leaves it out for versions without a transaction file.
        name = self.manifest.transaction_file.removesuffix(".txn")
        object.__setattr__(self, "read_uuid", name.partition("-")[2] or None)

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def stable_row_ids(self) -> bool:
        return bool(self.manifest.reader_feature_flags & _STABLE_ROW_IDS)

    @property
    def top_fields(self) -> list[Field]:
        """The columns, without what is nested in them."""
        return [one for one in self.manifest.fields if one.parent_id == -1]

    def column(self, name: str) -> Field:
        """Raises `StagingError` for a column that the table does not have at the top."""
        for one in self.top_fields:
            if one.name == name:
                return one
        has = ", ".join(one.name for one in self.top_fields)
        raise StagingError(f"there is no column {name!r} at the top of the table; it has {has}", code="column")

    def transaction(self, uuid: str | None, properties: Mapping[str, str] | None) -> Transaction:
        """Planned against this version, without an operation."""
        return new_transaction(self.version, uuid=uuid, properties=properties)

    def staged(self, transaction: Transaction) -> Staged:
        """Ready to be committed; refused where the table was made anew under the same name."""
        return Staged(transaction=transaction, read_uuid=self.read_uuid)

    def refuse_legacy(self, what: str) -> None:
        if self.manifest.data_format.version == "0.1":
            raise StagingError(
                f"{what}: the table has data files of the legacy format 0.1, which are not rewritten. Copy it into a "
                "new table with lance.write_dataset(dataset, uri, data_storage_version='stable')",
                code="legacy_files",
            )

    def refuse_blobs(self, what: str) -> None:
        blobs = [one.name for one in self.manifest.fields if _BLOB in one.metadata or _is_blob_v2(one)]
        if blobs:
            raise StagingError(
                f"{what}: column {blobs[0]!r} holds blobs, of which a scan yields descriptions and not the bytes. Add "
                "such rows with staging.append and remove old ones with staging.delete",
                code="blob_columns",
            )


def _is_blob_v2(one: Field) -> bool:
    return one.metadata.get("ARROW:extension:name", b"") == b"lance.blob.v2"


def read_table(dataset: lance.LanceDataset) -> ReadTable:
    """What the dataset was opened at. Reads nothing.

    Raises `StagingError` for a branch or a detached version, which the committer of the table does not write, and for
    a table with features that this version does not know.
    """
    # pylance pickles a dataset as this message, which holds more than its Python objects show.
    raw: bytes = dataset._ds.serialized_manifest()
    manifest = Manifest.FromString(bytes(raw))
    if manifest.branch:
        raise StagingError(
            f"the dataset is open at branch {manifest.branch!r}: its commits go to a table of its own, at "
            f"{dataset.uri.rstrip('/')}/tree/{manifest.branch}, and a queue writes the main branch. Check out a "
            "version of main",
            code="branch",
        )
    if manifest.version >= _DETACHED:
        raise StagingError(
            f"version {manifest.version} is detached and has no successors: open the dataset at a version of its "
            "history",
            code="detached_version",
        )
    unknown = unknown_fields(manifest)
    if unknown:
        raise StagingError(
            f"version {manifest.version} of {dataset.uri} has {', '.join(unknown)}, which this version of committerd "
            "does not know: update it",
            code="table_unknown_fields",
        )
    return ReadTable(manifest)
