"""Small operations that write no data: restore, data replacement, reservation of fragment ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from committerd_client import arguments
from committerd_client.headers import Staged
from committerd_client.staging.branches import takes_branches
from committerd_client.staging.errors import StagingError
from committerd_client.staging.fragments import data_file
from committerd_client.staging.transactions import read_table

if TYPE_CHECKING:
    import lance
    from lance.fragment import DataFile


@takes_branches
def restore(
    dataset: lance.LanceDataset,
    version: int | None = None,
    *,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Staged:
    """Restore an old version as the latest one: `version`, or the one at which the dataset is open.

    The latest version then lacks all changes since that version, of every writer. The committer's own keys stay.

    Raises `StagingError` for a version that is later than the latest one.
    """
    table = read_table(dataset)
    if version is not None:
        arguments.count(version, "version")
        if version > table.version and version > dataset.latest_version:
            raise StagingError(
                f"the table has no version {version}; its latest one is {dataset.latest_version}", code="version"
            )
    transaction = table.transaction(uuid, properties)
    transaction.restore.version = table.version if version is None else version
    return table.staged(transaction)


@takes_branches
def data_replacement(
    dataset: lance.LanceDataset,
    new_files: Mapping[int, DataFile],
    *,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Staged:
    """Replace columns of fragments: each new file, by fragment id, replaces the file with the same fields.

    A file must have as many rows as its fragment, deleted ones included, and all files must have the same fields. Write
    them with `lance.file.LanceFileWriter`. Raises `StagingError` for fragments that the table does not have.
    """
    table = read_table(dataset)
    if not isinstance(new_files, Mapping):
        raise TypeError(f"data_replacement takes a dict of files by fragment id, not {arguments.kind_of(new_files)}")
    known = {one.id for one in table.fragments_with(new_files)}
    unknown = sorted(new_files.keys() - known)
    if unknown or not new_files:
        raise StagingError(
            f"version {table.version} of the table has no fragment {unknown[0]}" if unknown else "no file was given",
            code="fragment",
        )
    transaction = table.transaction(uuid, properties)
    for id, file in new_files.items():
        transaction.data_replacement.replacements.add(fragment_id=id, new_file=data_file(file))
    return table.staged(transaction)


@takes_branches
def reserve_fragments(
    dataset: lance.LanceDataset,
    count: int,
    *,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Staged:
    """Reserve fragment ids for a Rewrite. The result of the commit holds the ids: `result.reserved`."""
    if not isinstance(count, int):
        raise TypeError(f"reserve_fragments takes a whole number, not {count!r}")
    if count < 1:
        raise StagingError(f"{count} fragment ids can't be reserved", code="nothing_to_stage")
    table = read_table(dataset)
    transaction = table.transaction(uuid, properties)
    transaction.reserve_fragments.num_fragments = count
    return table.staged(transaction)
