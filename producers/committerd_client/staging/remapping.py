"""Carries indices over a compaction, as pylance's own commit of a compaction does.

Where indices hold row addresses, a compaction moves the rows under them. pylance writes each index that covers a
rewritten fragment again, with the new addresses, in the same step in which it commits the Rewrite. To have the first
without the second, this module lets pylance commit to a copy: a shallow clone in a temporary folder on this machine,
which consists of one manifest that names the files of the table. (pylance's own `shallow_clone` writes the clone of a
table in a bucket to that bucket.) The rewritten indices are then copied to the table's `_indices/`, and the entries of
the Rewrite are taken from the transaction that pylance has committed to the copy.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committerd_client.staging.errors import StagingError
from committerd_common.messages import IndexSection, Manifest, Transaction
from committerd_common.paths import NamingScheme, index_prefix, manifest_key

if TYPE_CHECKING:
    import lance
    from lance.file import LanceFileSession

RewrittenIndex = Transaction.Rewrite.RewrittenIndex

_FOOTER = struct.Struct("<qhh4s")
"""The end of a manifest's file: position of the manifest, format, `LANC`."""
_LENGTH = struct.Struct("<I")
_BASE_PATHS = 16
"""The feature flag of a table that names files in other folders."""


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
    options, source = dataset.latest_storage_options(), _objects(dataset.uri)
    table = LanceFileSession(source, storage_options=options)
    with tempfile.TemporaryDirectory(prefix="committerd-") as folder:
        copy = Path(folder, "copy.lance")
        rewritten = {old["id"] for one in results for old in json.loads(one)["original_fragments"]}
        _clone(_manifest(table, dataset.version, Path(folder)), copy, source, first=reserved[0], rewritten=rewritten)
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
        for index in rewrite.rewritten_indices:
            for file in (copy / index_prefix(index.new_id.uuid)).rglob("*"):
                table.upload_file(file, file.relative_to(copy).as_posix())
        return tuple(rewrite.rewritten_indices)


def _objects(uri: str) -> str:
    """Where the objects of a table are, as a base path names them."""
    if uri.startswith("s3+ddb://"):
        return uri.partition("?")[0].replace("s3+ddb", "s3", 1)
    return uri if "://" in uri else os.path.abspath(uri)


def _manifest(table: LanceFileSession, version: int, folder: Path) -> bytes:
    """The manifest's object."""
    key = manifest_key(version, NamingScheme.V2)
    if not table.contains(key):
        key = manifest_key(version, NamingScheme.V1)
    local = folder / "source.manifest"
    table.download_file(key, local)
    return local.read_bytes()


def _clone(body: bytes, copy: Path, source: str, *, first: int, rewritten: Collection[int]) -> None:
    """Write the manifest of a shallow clone, whose next fragment has the id `first`.

    The clone loses fragments that came since the reservation: pylance counts on from the highest id.
    """
    position, *footer = _FOOTER.unpack(body[-_FOOTER.size :])
    manifest, indices = Manifest.FromString(_section(body, position)), IndexSection()
    if manifest.HasField("index_section"):
        indices.ParseFromString(_section(body, manifest.index_section))
    for name in ("index_section", "transaction_section", "transaction_section_v14", "transaction_file"):
        manifest.ClearField(name)
    manifest.max_fragment_id = first - 1
    manifest.reader_feature_flags |= _BASE_PATHS
    manifest.writer_feature_flags |= _BASE_PATHS
    base = max((one.id for one in manifest.base_paths), default=-1) + 1
    manifest.base_paths.add(id=base, is_dataset_root=True, path=source)
    kept = [one for one in manifest.fragments if one.id < first or one.id in rewritten]
    for fragment in kept:
        deletions = [fragment.deletion_file] if fragment.HasField("deletion_file") else []
        _set_base([*fragment.files, *deletions], base)
    del manifest.fragments[:]
    manifest.fragments.extend(kept)
    _set_base(indices.indices, base)
    made = b""
    if indices.indices:
        manifest.index_section = 0
        made = _with_length(indices.SerializeToString())
    target = copy / manifest_key(manifest.version, NamingScheme.V2)
    target.parent.mkdir(parents=True)
    target.write_bytes(made + _with_length(manifest.SerializeToString()) + _FOOTER.pack(len(made), *footer))


def _set_base(named: Iterable[Any], base: int) -> None:
    """Set this base for those that are in the table's own folder."""
    for one in named:
        if not one.HasField("base_id"):
            one.base_id = base


def _section(body: bytes, position: int) -> bytes:
    start = position + _LENGTH.size
    return body[start : start + _LENGTH.unpack(body[position:start])[0]]


def _with_length(section: bytes) -> bytes:
    return _LENGTH.pack(len(section)) + section


def _committed(copy: Path) -> Transaction.Rewrite:
    """The Rewrite that pylance has committed to the copy."""
    for path in (copy / "_transactions").glob("*.txn"):
        transaction = Transaction.FromString(path.read_bytes())
        if transaction.WhichOneof("operation") == "rewrite":
            return transaction.rewrite
    raise StagingError("pylance has committed no Rewrite to its copy of the table", code="index")
