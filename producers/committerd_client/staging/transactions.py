"""The common parts of all staged transactions: a uuid, properties, and the read version."""

from __future__ import annotations

import difflib
import uuid as uuids
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from committerd_client import arguments
from committerd_client.headers import Staged, StagedChange
from committerd_client.staging.branches import require_own_folder
from committerd_client.staging.errors import StagingError
from committerd_common.messages import DataFragment, Field, Manifest, PackedManifest, Transaction
from committerd_common.own_properties import CHANGES, CHANGES_MAX
from committerd_common.unknown_fields import unknown_fields

if TYPE_CHECKING:
    import lance

STABLE_ROW_IDS = 2  # Lance: feature_flags.rs
_DETACHED = 1 << 63  # Lance: versions from here on are detached
_DECODED_FOR_ONE = 32
"""At most this many fragments are decoded to find one by its id."""
_BLOB = "lance-encoding:blob"


def _id_of(packed: bytes) -> int:
    return DataFragment.FromString(packed).id


def new_uuid() -> str:
    """A new uuid for a transaction, in lower case with hyphens."""
    return str(uuids.uuid4())


def new_transaction(
    read_version: int, *, uuid: str | None = None, properties: Mapping[str, str] | None = None
) -> Transaction:
    """A transaction without an operation. Raises `StagingError` for properties that are reserved for the committer."""
    given = arguments.properties(properties)
    if uuid is not None:
        arguments.text(uuid, "uuid")
    return Transaction(read_version=read_version, uuid=uuid or new_uuid(), transaction_properties=given)


@dataclass(frozen=True, slots=True)
class ReadTable:
    """The version of a table at which a dataset is open; changes are planned against it."""

    manifest: Manifest
    """Without its fragments."""
    packed_fragments: Sequence[bytes] = field(default=(), repr=False)
    """Each fragment, in the manifest's order, as a serialized `DataFragment`."""
    uri: str | None = None
    """Where the table is."""
    read_uuid: str | None = field(init=False)
    """The uuid of the transaction that made the version."""

    def __post_init__(self) -> None:
        # "4-0b8f...e13.txn": read version and uuid. It is empty for versions without a transaction file.
        name = self.manifest.transaction_file.removesuffix(".txn")
        object.__setattr__(self, "read_uuid", name.partition("-")[2] or None)

    @property
    def version(self) -> int:
        return self.manifest.version

    def fragments(self) -> Sequence[DataFragment]:
        """The fragments, decoded. Raises `StagingError` for fragments with features that this client does not know."""
        decoded = Manifest.FromString(PackedManifest(fragments=self.packed_fragments).SerializeToString())
        decoded.version = self.version
        _refuse_unknown(decoded)
        return decoded.fragments

    def fragments_with(self, ids: Collection[int]) -> list[DataFragment]:
        """The fragments that have these ids, decoded; other ids are ignored. Raises `StagingError` as `fragments` does.

        If few ids are asked for, it finds them by binary search, and decodes only a few other fragments.
        """
        found: list[DataFragment] = []
        if len(ids) * _DECODED_FOR_ONE < len(self.packed_fragments):
            # In the manifest ids ascend, unless a writer has ordered the fragments in another way.
            for id in sorted(ids):
                place = bisect_left(self.packed_fragments, id, key=_id_of)
                found.extend(map(DataFragment.FromString, self.packed_fragments[place : place + 1]))
            if [one.id for one in found] == sorted(ids):
                _refuse_unknown(Manifest(version=self.version, fragments=found))
                return found
        return [one for one in self.fragments() if one.id in ids]

    @property
    def stable_row_ids(self) -> bool:
        return bool(self.manifest.reader_feature_flags & STABLE_ROW_IDS)

    @property
    def top_fields(self) -> list[Field]:
        """The columns, without nested fields."""
        return [one for one in self.manifest.fields if one.parent_id == -1]

    def column(self, name: str) -> Field:
        """The top-level column of this name. Raises `StagingError` if the table does not have it."""
        for one in self.top_fields:
            if one.name == name:
                return one
        raise self.no_column(name)

    def note_changes(self, transaction: Transaction, names: Collection[str]) -> None:
        """Note in an Update that it inserts no row, and changes the values of these top-level columns alone."""
        ids = {one.id for one in self.top_fields if one.name in names}
        for one in self.manifest.fields:  # each after its parent
            if one.parent_id in ids:
                ids.add(one.id)
        if len(ids) <= CHANGES_MAX:
            transaction.transaction_properties[CHANGES] = ",".join(map(str, sorted(ids)))

    def no_column(self, name: str) -> StagingError:
        """The error for a column that the table does not have."""
        has = [one.name for one in self.top_fields]
        near = difflib.get_close_matches(name, has, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        return StagingError(f"there is no column {name!r} in the table{hint}; it has {', '.join(has)}", code="column")

    def transaction(self, uuid: str | None, properties: Mapping[str, str] | None) -> Transaction:
        """A transaction against this version, without an operation."""
        return new_transaction(self.version, uuid=uuid, properties=properties)

    def staged(self, transaction: Transaction) -> Staged:
        """The transaction, ready to be committed; the committer refuses it if the table was recreated since."""
        return Staged(transaction=transaction, read_uuid=self.read_uuid, uri=self.uri, branch=self.manifest.branch)

    def change(
        self, transaction: Transaction, *, inserted: int = 0, updated: int = 0, deleted: int = 0
    ) -> StagedChange:
        """As `staged`, with the numbers of rows that it inserts, updates and deletes."""
        return StagedChange(
            transaction=transaction,
            read_uuid=self.read_uuid,
            uri=self.uri,
            branch=self.manifest.branch,
            inserted=inserted,
            updated=updated,
            deleted=deleted,
        )

    def refuse_legacy(self, what: str) -> None:
        refuse_legacy(self.manifest.data_format.version, what)

    @property
    def has_blobs(self) -> bool:
        return bool(self._blobs)

    @property
    def _blobs(self) -> list[str]:
        return [one.name for one in self.manifest.fields if _BLOB in one.metadata or _is_blob_v2(one)]

    def refuse_blobs(self, what: str) -> None:
        blobs = self._blobs
        if blobs:
            raise StagingError(
                f"{what}: column {blobs[0]!r} holds blobs, of which a scan yields descriptions and not the bytes. Add "
                "such rows with staging.append and remove old ones with staging.delete",
                code="blob_columns",
            )


def refuse_legacy(storage_version: str, what: str) -> None:
    """Raise `StagingError` for the legacy format of data files."""
    if storage_version == "0.1":
        raise StagingError(
            f"{what}: the table has data files of the legacy format 0.1, which are not rewritten. Copy it into a "
            "new table with lance.write_dataset(dataset, uri, data_storage_version='stable')",
            code="legacy_files",
        )


def _is_blob_v2(one: Field) -> bool:
    return one.metadata.get("ARROW:extension:name", b"") == b"lance.blob.v2"


def read_table(dataset: lance.LanceDataset) -> ReadTable:
    """The version at which the dataset is open. Does no I/O, and decodes no fragments.

    Raises `StagingError` for a detached version, because no committer writes it, and for a table with features that
    this client does not know. Raises `BranchCheckedOut` for a branch that is not open at its own folder.
    """
    if not hasattr(dataset, "_ds"):
        raise TypeError(f"a dataset of pylance is needed, such as lance.dataset(uri), not {dataset!r}")
    # pylance pickles a dataset as this message, which holds more than its Python objects expose.
    raw: bytes = dataset._ds.serialized_manifest()
    packed = PackedManifest.FromString(bytes(raw))
    fragments = tuple(packed.fragments)
    packed.ClearField("fragments")
    manifest = Manifest.FromString(packed.SerializeToString())
    require_own_folder(dataset, manifest)
    if manifest.version >= _DETACHED:
        raise StagingError(
            f"version {manifest.version} is detached and has no successors: open the dataset at a version of its "
            "history",
            code="detached_version",
        )
    _refuse_unknown(manifest)
    return ReadTable(manifest, fragments, dataset.uri)


def _refuse_unknown(manifest: Manifest) -> None:
    unknown = unknown_fields(manifest)
    if unknown:
        raise StagingError(
            f"version {manifest.version} of the table has {', '.join(unknown)}, which this version of committerd does "
            "not know: update it",
            code="table_unknown_fields",
        )
