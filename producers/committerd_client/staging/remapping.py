"""Carries indices over a compaction, as pylance's own commit of a compaction does.

Where indices hold row addresses, a compaction moves the rows under them. pylance writes each index that covers a
rewritten fragment again, with the new addresses, in the same step in which it commits the Rewrite. To have the first
without the second, this module lets pylance commit to a copy: a shallow clone in a temporary folder on this machine,
which consists of one manifest that names the files of the table. The rewritten indices are then copied to the table's
`_indices/`, and the entries of the Rewrite are taken from the transaction that pylance has committed to the copy.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committerd_client.staging.errors import StagingError
from committerd_common.messages import Manifest, Transaction
from committerd_common.paths import index_prefix

if TYPE_CHECKING:
    import lance

RewrittenIndex = Transaction.Rewrite.RewrittenIndex

_FOOTER = struct.Struct("<qhh4s")
"""The end of a manifest's file: position of the manifest, format, `LANC`."""
_LENGTH = struct.Struct("<I")


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
    options = dataset.latest_storage_options()
    with tempfile.TemporaryDirectory(prefix="committerd-") as folder:
        copy = Path(folder, "copy.lance")
        dataset.shallow_clone(copy, dataset.version)
        rewritten = {old["id"] for one in results for old in json.loads(one)["original_fragments"]}
        _reserve_below(copy, reserved[0], rewritten)
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
        target = LanceFileSession(dataset.uri, storage_options=options)
        for index in rewrite.rewritten_indices:
            for file in (copy / index_prefix(index.new_id.uuid)).rglob("*"):
                target.upload_file(file, file.relative_to(copy).as_posix())
        return tuple(rewrite.rewritten_indices)


def _reserve_below(copy: Path, first: int, rewritten: set[int]) -> None:
    """Let the copy's next fragment have the id `first`.

    The copy loses fragments that came since the reservation: pylance counts on from the highest id.
    """
    (path,) = (copy / "_versions").glob("*.manifest")
    body = path.read_bytes()
    position = _FOOTER.unpack(body[-_FOOTER.size :])[0]
    start = position + _LENGTH.size
    manifest = Manifest.FromString(body[start : start + _LENGTH.unpack(body[position:start])[0]])
    manifest.max_fragment_id = first - 1
    kept = [one for one in manifest.fragments if one.id < first or one.id in rewritten]
    del manifest.fragments[:]
    manifest.fragments.extend(kept)
    encoded = manifest.SerializeToString()
    path.write_bytes(body[:position] + _LENGTH.pack(len(encoded)) + encoded + body[-_FOOTER.size :])


def _committed(copy: Path) -> Transaction.Rewrite:
    """The Rewrite that pylance has committed to the copy."""
    for path in (copy / "_transactions").glob("*.txn"):
        transaction = Transaction.FromString(path.read_bytes())
        if transaction.WhichOneof("operation") == "rewrite":
            return transaction.rewrite
    raise StagingError("pylance has committed no Rewrite to its copy of the table", code="index")
