"""Restore: the table as it was at an earlier version, under a new number."""

from __future__ import annotations

from committerd.errors import InvalidRequest
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.feature_flags import CARRIED
from committerd.lance.format.kind import Kind
from committerd.lance.format.support import has_stable_row_ids
from committerd.lance.operations.operation import Input, Operation, ScalesWith
from committerd.lance.versions.draft import Draft, finish, own_metadata
from committerd_common.messages import Transaction


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    return Footprint(kind=Kind.RESTORE)


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: commit.rs, restore_old_manifest.

    Ids that were used since are not used again: both counters keep the higher value (4.0.0 does so for fragment ids
    only). The queue's entries in `table_metadata` are those of the latest version, not of the restored one. All indices
    are as they were, and so is what the MemWAL index says of them.
    """
    restored, latest = draft.given.restored, draft.manifest
    if restored is None:
        raise InvalidRequest(
            f"Restore names version {transaction.restore.version}, which does not exist (any more)",
            code="unknown_version",
        )
    if has_stable_row_ids(restored.outline) != draft.has_stable_row_ids:
        raise InvalidRequest(
            f"Restore can't go back to version {transaction.restore.version}: stable row ids were turned on or off "
            "since",
            code="restore_row_ids",
        )
    own = own_metadata(latest.table_metadata)
    version, timestamp = latest.version, latest.timestamp
    made = restored.manifest
    made.version = version
    made.timestamp.CopyFrom(timestamp)
    made.writer_version.CopyFrom(latest.writer_version)
    made.transaction_file = latest.transaction_file
    for name in ("index_section", "transaction_section", "transaction_section_v14"):
        made.ClearField(name)
    if latest.HasField("max_fragment_id"):
        made.max_fragment_id = max(made.max_fragment_id, latest.max_fragment_id)
    made.next_row_id = max(made.next_row_id, latest.next_row_id)
    # pylance 14.0.2: a feature that the table has once had stays flagged.
    made.reader_feature_flags |= latest.reader_feature_flags & CARRIED
    for key in own_metadata(made.table_metadata):
        del made.table_metadata[key]
    made.table_metadata.update(own)
    draft.drop_fragments()
    latest.CopyFrom(made)
    draft.indices = list(restored.indices)
    draft.touched = None
    finish(draft)


RESTORE = Operation(
    kind=Kind.RESTORE,
    scales_with=ScalesWith.UNBOUNDED,
    inputs=frozenset({Input.RESTORED_VERSION}),
    footprint=_footprint,
    build=_build,
    keeps_progress=True,
)
