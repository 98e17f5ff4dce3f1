"""Creates, drops and optimizes indices. pylance writes their files before anything is committed."""

from __future__ import annotations

import logging
import tempfile
import uuid as uuids
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap

from committerd_client import arguments
from committerd_client.headers import Staged
from committerd_client.leftovers import index_keys, remover
from committerd_client.panics import is_lasting, panics_raised
from committerd_client.staging.branches import takes_branches
from committerd_client.staging.config import field_at
from committerd_client.staging.copies import manifest_file, place_of_objects, read_manifest, write_copy
from committerd_client.staging.errors import StagingError
from committerd_client.staging.index_check import wrong_answer
from committerd_client.staging.transactions import ReadTable, new_transaction, read_table
from committerd_client.staging.uncommitted import would_commit
from committerd_common.index_details import covered_fragments, encode_fragments, pack_details
from committerd_common.messages import UUID, IndexMetadata, IndexSection, Transaction, VectorIndexDetails

if TYPE_CHECKING:
    import lance
    from lance.dataset import Index
    from lance.indices import IndexSegmentDescription

_log = logging.getLogger("committerd_client")
ADDRESS_KINDS = frozenset({"ZoneMapIndexDetails", "BloomFilterIndexDetails"})
"""Kinds of indices that hold addresses of rows even in a table with stable row ids."""
_KINDS = {
    "BTreeIndexDetails": "BTREE",
    "BitmapIndexDetails": "BITMAP",
    "LabelListIndexDetails": "LABEL_LIST",
    "NGramIndexDetails": "NGRAM",
    "ZoneMapIndexDetails": "ZONEMAP",
    "BloomFilterIndexDetails": "BLOOMFILTER",
    "InvertedIndexDetails": "INVERTED",
}
"""Kinds of indices that can be built anew without being told their parameters."""


@takes_branches
def create_index(
    dataset: lance.LanceDataset,
    column: str,
    index_type: str,
    *,
    name: str | None = None,
    replace: bool = False,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
    **parameters: Any,
) -> Staged:
    """Create an index on a column, as pylance's `create_scalar_index` and `create_index` do.

    `index_type`: `BTREE`, `BITMAP`, `INVERTED`, ... or `IVF_PQ`, `IVF_HNSW_SQ`, ... `name`: default `{column}_idx`.
    `replace`: replace an index of that name; without it, such an index is an error of pylance. `parameters`: those of
    pylance, such as `num_partitions`. The index does not cover rows that are appended meanwhile until
    `optimize_indices`.

    Raises `StagingError` for an unknown column, a branch or a detached version, and pylance's errors.
    """
    table = read_table(dataset)
    if not isinstance(column, str):
        raise TypeError(f"create_index takes the name of one column, not {column!r}")
    if not isinstance(index_type, str):
        raise TypeError(f"create_index takes the index type as a str, such as 'BTREE', not {index_type!r}")
    field_at(table, column)
    called = f"{column}_idx" if name is None else name

    def change(opened: lance.LanceDataset) -> None:
        build: Any = opened.create_index if index_type.upper().startswith("IVF") else opened.create_scalar_index
        build(column, index_type, name=called, replace=replace, **parameters)

    staged = _index_change(dataset, table, change, names=[called], uuid=uuid, properties=properties)
    if staged is None:
        raise StagingError(f"pylance built index {called!r} and had nothing to commit", code="index")
    return staged


@takes_branches
def drop_index(
    dataset: lance.LanceDataset,
    name: str,
    *,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Staged:
    """Drop an index by name, with all its segments. Raises `StagingError` if the table does not have it."""
    table = read_table(dataset)
    transaction = table.transaction(uuid, properties)
    for index in dataset.describe_indices():
        if index.name == name:
            transaction.create_index.removed_indices.extend(_described(index, segment) for segment in index.segments)
    if not transaction.create_index.removed_indices:
        raise StagingError(f"the table has no index {name!r}", code="index")
    return table.staged(transaction)


@takes_branches
def optimize_indices(
    dataset: lance.LanceDataset,
    names: Iterable[str] | None = None,
    *,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
    **options: Any,
) -> Staged | None:
    """Add the rows to the indices that these don't cover yet, as `dataset.optimize.optimize_indices` does.

    Returns None if there is nothing to do. `names`: None = all indices. `options`: those of pylance, such as
    `num_indices_to_merge`, `retrain`. Raises `StagingError` for an index that the table does not have.
    """
    table = read_table(dataset)
    there = index_names(dataset)
    given = sorted(there if names is None else set(arguments.names(names, "names")))
    unknown = [name for name in given if name not in there]
    if unknown:
        listed = ", ".join(sorted(there)) or "none"
        raise StagingError(f"the table has no index {unknown[0]!r}; it has {listed}", code="index")
    if not given:
        return None
    return _index_change(
        dataset,
        table,
        lambda opened: opened.optimize.optimize_indices(index_names=given, **options),
        names=given,
        uuid=uuid,
        properties=properties,
    )


def update_index(dataset: lance.LanceDataset, name: str, **options: Any) -> Staged | None:
    """As `optimize_indices` for one index; what pylance has made is read back, and where it is wrong, or pylance fails,
    the index is built anew.

    Returns None if there is nothing to do, or no such index. `options`: those of pylance. Raises `StagingError`
    (`index`) for an index that can't be kept up to date, which says what to do, and pylance's errors about the store.
    """
    index = next((one for one in dataset.describe_indices() if one.name == name), None)
    if index is None:
        return None
    if len(index.field_names) != 1:
        raise StagingError(
            f"index {name!r} names {len(index.field_names) or 'no'} columns, and pylance can't update it: drop it "
            "(staging.drop_index), and create an index for each column",
            code="index",
        )
    why = _outdated_in_place(dataset, index)
    if why is None:
        try:
            with panics_raised():
                staged = optimize_indices(dataset, [name], **options)
        except Exception as error:
            if not is_lasting(error):
                raise
            why = str(error)
        else:
            why = None if staged is None else _wrong(dataset, staged, name)
            if why is None:
                return staged
    _log.warning("index %s of %s is built anew: %s", name, dataset.uri, why)
    kind = _KINDS.get(index.type_url.rpartition(".")[2])
    if kind is None:
        raise StagingError(_not_kept_up(name, f"{why}. Drop it (staging.drop_index) and create it again"), code="index")
    parameters = _parameters(index) if kind == "INVERTED" else {}
    try:
        with panics_raised():
            made = create_index(dataset, index.field_names[0], kind, name=name, replace=True, **parameters)
    except Exception as error:
        if not is_lasting(error):
            raise
        raise StagingError(_not_kept_up(name, f"{why}; and it can't be built anew: {error}"), code="index") from error
    wrong = _wrong(dataset, made, name)
    if wrong is not None:
        raise StagingError(_not_kept_up(name, f"also when it is built anew, {wrong}: drop it"), code="index")
    return made


def _parameters(index: Any) -> dict[str, Any]:
    """The parameters of a text index, for `create_scalar_index`."""
    told = {key: value for key, value in index.details.items() if value is not None}
    granularity = told.pop("document_granularity", "row")
    if granularity != "row":
        from lance.query import DocumentGranularity

        told["document_granularity"] = DocumentGranularity(granularity)
    return told


def _not_kept_up(name: str, why: str) -> str:
    return f"index {name!r} can't be kept up to date: {why}"


def _outdated_in_place(dataset: lance.LanceDataset, index: Any) -> str | None:
    """Why an update of this index would be wrong; None if nothing speaks against it.

    pylance 14.0.2 keeps the nulls that a zone map or a bloom filter has noted of a fragment before its column was
    rewritten in place. Such a fragment is older than others that the index covers.
    """
    if index.type_url.rpartition(".")[2] not in ADDRESS_KINDS:
        return None
    covered = BitMap().union(*(BitMap(one.fragment_ids) for one in index.segments))
    older = [one.fragment_id for one in dataset.get_fragments() if covered and one.fragment_id < covered.max()]
    if all(one in covered for one in older):
        return None
    return "a column was rewritten in place, and pylance would keep the nulls that the index has noted of it"


def _wrong(dataset: lance.LanceDataset, staged: Staged, name: str) -> str | None:
    """What is wrong with the index that a transaction brings; its files are deleted then."""
    from lance.file import LanceFileSession

    operation = staged.transaction.create_index
    made = [one for one in operation.new_indices if one.name == name]
    options = dataset.latest_storage_options()
    with tempfile.TemporaryDirectory(prefix="committerd-") as folder:
        session = LanceFileSession(place_of_objects(dataset.uri), storage_options=options)
        body = manifest_file(session, staged.transaction.read_version, Path(folder))
        manifest, indices = read_manifest(body)
        removed = {one.uuid.uuid for one in operation.removed_indices}
        before = [one for one in indices.indices if one.name == name]
        section = IndexSection(indices=[*(one for one in before if one.uuid.uuid not in removed), *made])
        anew = set(_covered(made) - _covered(before))
        try:
            with panics_raised():
                copy = Path(folder, "copy.lance")
                write_copy(copy, manifest, section, source=place_of_objects(dataset.uri))
                wrong = wrong_answer(copy, manifest, section.indices, anew=anew, storage_options=options)
        except Exception as error:
            if not is_lasting(error):
                raise
            wrong = f"a query through it fails: {error}"
    if wrong is not None:
        with suppress(Exception):
            delete = remover(dataset.uri, options)
            for key in index_keys(staged.transaction, dataset):
                delete(key)
    return wrong


def _covered(segments: Iterable[IndexMetadata]) -> BitMap:
    found = (covered_fragments(one, staged=False) for one in segments)
    return BitMap().union(*(one for one in found if one is not None))


def index_names(dataset: lance.LanceDataset) -> set[str]:
    """The names of the table's indices."""
    return {index.name for index in dataset.describe_indices()}


@takes_branches
def add_index_segments(
    dataset: lance.LanceDataset,
    segments: Iterable[Index],
    *,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Staged:
    """Add segments to the table that `dataset.create_index_uncommitted` has built, here or on other machines.

    Segments with the same name form one index, together with the segments that the table already has under that name.

    Raises `StagingError` if pylance does not return an index's details (4.0.0 never does; the details of vector indices
    are known without it).
    """
    table = read_table(dataset)
    vectors = {one.id for one in table.manifest.fields if one.logical_type.startswith("fixed_size_list:")}
    transaction = table.transaction(uuid, properties)
    transaction.create_index.new_indices.extend(_index(segment, vectors) for segment in segments)
    if not transaction.create_index.new_indices:
        raise StagingError("no segment was given", code="index")
    return table.staged(transaction)


def _index_change(
    dataset: lance.LanceDataset,
    table: ReadTable,
    change: Callable[[lance.LanceDataset], Any],
    *,
    names: list[str],
    uuid: str | None,
    properties: Mapping[str, str] | None,
) -> Staged | None:
    def expected(transaction: Transaction) -> bool:
        operation = transaction.create_index
        named = {index.name for index in (*operation.new_indices, *operation.removed_indices)}
        return bool(named) and named.issubset(names)

    found = would_commit(dataset, change, expected=expected)
    if found is None:
        return None
    # pylance may have read later versions, and has planned it against the latest one.
    transaction = new_transaction(found.read_version, uuid=uuid, properties=properties)
    transaction.create_index.CopyFrom(found.create_index)
    same = found.read_version == table.version
    return replace(table.staged(transaction), read_uuid=table.read_uuid if same else None)


def _described(index: Any, segment: IndexSegmentDescription) -> IndexMetadata:
    """A segment of the table, as far as pylance describes it; enough to remove it, because its uuid identifies it."""
    made = IndexMetadata(
        uuid=UUID(uuid=uuids.UUID(str(segment.uuid)).bytes),
        fields=index.fields,
        name=index.name,
        dataset_version=segment.dataset_version_at_last_update,
        fragment_bitmap=encode_fragments(BitMap(segment.fragment_ids)),
        index_version=segment.index_version,
        base_id=getattr(segment, "base_id", None),
    )
    made.index_details.type_url = index.type_url
    return made


def _index(segment: Index, vectors: set[int]) -> IndexMetadata:
    if getattr(segment, "covering_fields", None):
        raise StagingError(
            f"index {segment.name!r} holds covered columns, which this version of committerd can't carry to a table",
            code="unknown_to_committerd",
        )
    details = getattr(segment, "index_details", None)
    made = IndexMetadata(
        uuid=UUID(uuid=uuids.UUID(segment.uuid).bytes),
        fields=segment.fields,
        name=segment.name,
        dataset_version=segment.dataset_version,
        fragment_bitmap=encode_fragments(BitMap(segment.fragment_ids)),
        index_version=segment.index_version,
        base_id=segment.base_id,
    )
    if segment.created_at is not None:
        made.created_at = int(segment.created_at.timestamp() * 1000)
    for file in segment.files or ():
        made.files.add(path=file.path, size_bytes=file.size_bytes)
    if details is not None:
        made.index_details.type_url, made.index_details.value = details
    elif vectors.issuperset(segment.fields):
        made.index_details.CopyFrom(pack_details(VectorIndexDetails()))
    else:
        raise StagingError(
            f"this pylance does not tell the details of index {segment.name!r}: build it with staging.create_index, "
            "or with pylance 14",
            code="index",
        )
    return made
