"""Carries indices over a compaction, as pylance's own commit of a compaction does.

Where indices hold row addresses, a compaction moves the rows under them. pylance writes each index that covers a
rewritten fragment again, with the new addresses, in the same step in which it commits the Rewrite. To have the first
without the second, this module lets pylance commit to a copy (`copies`). The rewritten indices are then copied to the
table's `_indices/`, and the entries of the Rewrite are taken from the transaction that pylance has committed to the
copy.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committerd_client.staging.copies import (
    manifest_file,
    name_data_files_at,
    place_of_objects,
    read_manifest,
    write_copy,
)
from committerd_client.staging.errors import StagingError
from committerd_client.staging.index_check import wrong_answer
from committerd_common.messages import Transaction
from committerd_common.paths import VERSIONS, index_prefix

if TYPE_CHECKING:
    import lance

_log = logging.getLogger("committerd_client")

RewrittenIndex = Transaction.Rewrite.RewrittenIndex


def remapped_indices(
    dataset: lance.LanceDataset, results: Sequence[str], reserved: Sequence[int]
) -> tuple[RewrittenIndex, ...]:
    """Rewrite the indices that cover the rewritten fragments; their new files are in the table's folder then.

    `dataset`: open at the version at which the Rewrite is planned. `results`: the JSON of each `RewriteResult`.
    `reserved`: the ids of the new fragments, in order; consecutive, because pylance counts them itself.

    Raises `StagingError` if the ids are not consecutive, and pylance's errors for an index that it can't rewrite.
    """
    import lance
    from lance.file import LanceFileSession
    from lance.optimize import Compaction, RewriteResult

    if list(reserved) != list(range(reserved[0], reserved[0] + len(reserved))):
        raise StagingError(
            f"the reserved fragment ids {list(reserved)} are not consecutive, and pylance can't rewrite indices for "
            "such ids: take all of them from one reservation",
            code="fragments_reserved",
        )
    kind: Any = RewriteResult  # its stub lacks `from_json`
    options, source = dataset.latest_storage_options(), place_of_objects(dataset.uri)
    table = LanceFileSession(source, storage_options=options)
    with tempfile.TemporaryDirectory(prefix="committerd-") as folder:
        copy = Path(folder, "copy.lance")
        rewritten = {old["id"] for one in results for old in json.loads(one)["original_fragments"]}
        _clone(
            manifest_file(table, dataset.version, Path(folder)), copy, source, first=reserved[0], rewritten=rewritten
        )
        opened = lance.dataset(copy, storage_options=options)
        at_this_version = [json.dumps({**json.loads(one), "read_version": dataset.version}) for one in results]
        Compaction.commit(opened, [kind.from_json(one) for one in at_this_version])
        rewrite = _committed(copy)
        new = [one.id for group in rewrite.groups for one in group.new_fragments]
        if new != list(reserved[: len(new)]):
            raise StagingError(
                f"pylance gave the new fragments the ids {new}, and {list(reserved)} are reserved",
                code="fragments_reserved",
            )
        right = tuple(_right(copy, rewrite, source, anew=new, storage_options=options))
        for index in right:
            for file in (copy / index_prefix(index.new_id.uuid)).rglob("*"):
                table.upload_file(file, file.relative_to(copy).as_posix())
        return right


def _right(
    copy: Path,
    rewrite: Transaction.Rewrite,
    source: str,
    *,
    anew: Collection[int],
    storage_options: dict[str, str] | None,
) -> Iterator[RewrittenIndex]:
    """The rewritten indices that answer as a scan does; the others are left out, so queries scan the moved rows."""
    body = min((copy / VERSIONS).glob("*.manifest")).read_bytes()  # the names of later versions sort first
    for index in rewrite.rewritten_indices:
        manifest, indices = read_manifest(body)
        name_data_files_at(manifest, source)  # pylance takes the new ones for its own
        segments = [one for one in indices.indices if one.uuid.uuid == index.new_id.uuid]
        for one in segments:
            one.ClearField("base_id")  # pylance writes it to the copy, and names the place of the old one
        wrong = wrong_answer(copy, manifest, segments, anew=anew, storage_options=storage_options)
        if wrong is None:
            yield index
        else:
            _log.warning("index %s is not carried over a compaction: %s", segments[0].name, wrong)


def _clone(body: bytes, copy: Path, source: str, *, first: int, rewritten: Collection[int]) -> None:
    """Write the manifest of a copy, whose next fragment has the id `first`.

    The copy loses fragments that came since the reservation: pylance counts on from the highest id.
    """
    manifest, indices = read_manifest(body)
    # pylance panics at an index that names no field when it commits a compaction.
    some = [one for one in indices.indices if one.fields]
    del indices.indices[:]
    indices.indices.extend(some)
    manifest.max_fragment_id = first - 1
    kept = [one for one in manifest.fragments if one.id < first or one.id in rewritten]
    del manifest.fragments[:]
    manifest.fragments.extend(kept)
    write_copy(copy, manifest, indices, source=source)


def _committed(copy: Path) -> Transaction.Rewrite:
    """The Rewrite that pylance has committed to the copy."""
    for path in (copy / "_transactions").glob("*.txn"):
        transaction = Transaction.FromString(path.read_bytes())
        if transaction.WhichOneof("operation") == "rewrite":
            return transaction.rewrite
    raise StagingError("pylance has committed no Rewrite to its copy of the table", code="index")
