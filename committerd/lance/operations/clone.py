"""Clone: the first version of a table, made from a version of another."""

from __future__ import annotations

from committerd.errors import InvalidRequest
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.operations.operation import AppliesTo, Input, Operation, ReadVersion, ScalesWith
from committerd.lance.operations.permissions import Permissions
from committerd.lance.versions.bases import next_base_id, require_allowed_base
from committerd.lance.versions.draft import Draft, finish, own_metadata
from committerd_common.messages import DataFragment, IndexMetadata, Transaction


def _names(transaction: Transaction) -> list[tuple[str, str]]:
    return [("ref_name", transaction.clone.ref_name), ("branch_name", transaction.clone.branch_name)]


def _validate(transaction: Transaction, allowed: Permissions, key_bytes_max: int) -> None:
    require_allowed_base("Clone", transaction.clone.ref_path, allowed.bases)


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    return Footprint(kind=Kind.CLONE)


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: commit.rs, do_commit_new_dataset.

    The new version has the number of its source version. A shallow clone reads the other table's files through a base;
    a deep clone has copies of them.
    """
    clone, source = transaction.clone, draft.given.source
    if source is None:
        raise InvalidRequest(
            f"Clone reads version {clone.ref_version} of {clone.ref_path!r}, which is not there", code="unknown_version"
        )
    own = draft.manifest
    made = source.manifest
    made.timestamp.CopyFrom(own.timestamp)
    made.writer_version.CopyFrom(own.writer_version)
    made.transaction_file = own.transaction_file
    for name in ("tag", "branch", "index_section", "transaction_section", "transaction_section_v14"):
        made.ClearField(name)
    for key in own_metadata(made.table_metadata):
        del made.table_metadata[key]
    if clone.HasField("branch_name"):
        made.branch = clone.branch_name
    indices = [_copied(index) for index in source.indices]
    if clone.is_shallow:
        base_id = next_base_id(made) if made.base_paths else 0
        base = made.base_paths.add(id=base_id, is_dataset_root=True, path=clone.ref_path)
        if clone.HasField("ref_name"):
            base.name = clone.ref_name
        for fragment in made.fragments:
            _set_base(fragment, base_id)
        for index in indices:
            index.base_id = base_id
    else:
        made.ClearField("base_paths")
        for fragment in made.fragments:
            _clear_base(fragment)
        for index in indices:
            index.ClearField("base_id")
    draft.manifest.CopyFrom(made)
    draft.indices = indices
    draft.touched = None
    finish(draft)


def _copied(index: IndexMetadata) -> IndexMetadata:
    copied = IndexMetadata()
    copied.CopyFrom(index)
    return copied


def _set_base(fragment: DataFragment, base_id: int) -> None:
    """Set this base, in place, for the files of the fragment that have none."""
    for file in fragment.files:
        if not file.HasField("base_id"):
            file.base_id = base_id
    if fragment.HasField("deletion_file") and not fragment.deletion_file.HasField("base_id"):
        fragment.deletion_file.base_id = base_id


def _clear_base(fragment: DataFragment) -> None:
    for file in fragment.files:
        file.ClearField("base_id")
    if fragment.HasField("deletion_file"):
        fragment.deletion_file.ClearField("base_id")


CLONE = Operation(
    kind=Kind.CLONE,
    target=AppliesTo.NEW,
    read_version=ReadVersion.OF_SOURCE,
    scales_with=ScalesWith.UNBOUNDED,
    inputs=frozenset({Input.CLONED_TABLE}),
    names=_names,
    validate=_validate,
    footprint=_footprint,
    build=_build,
)
