"""From the current version and a transaction to the next version.

Each operation has a function for it (`Operation.build`). This module reads nothing and checks no conflicts: the
transaction may be committed.
"""

from __future__ import annotations

from committerd.errors import InvalidRequest
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.operations.operation import AppliesTo
from committerd.lance.transactions.transaction import operation_of
from committerd.lance.versions.draft import BuildInput, first_draft, next_draft
from committerd.lance.versions.mem_wal import follow_indices
from committerd.lance.versions.next_version import NextVersion
from committerd_common.messages import Transaction


def build(current: ManifestFile | None, transaction: Transaction, given: BuildInput) -> NextVersion:
    """The version that follows `current` (None = there is no table), made by a normalised transaction.

    The arguments are not changed. Raises `InvalidRequest` for a change that the current version does not allow.
    """
    operation = operation_of(transaction)
    if current is None and operation.target is AppliesTo.EXISTING:
        raise InvalidRequest(
            f"there is no table yet, and {operation.kind} does not make one; stage an Overwrite first",
            code="no_table",
        )
    if current is not None and operation.target is AppliesTo.NEW:
        raise InvalidRequest(f"Clone makes a table, but there is one at version {current.version}", code="table_exists")
    draft = first_draft(given) if current is None else next_draft(current, given)
    draft.manifest.tag = transaction.tag
    operation.build(draft, transaction)
    if not operation.keeps_progress:
        follow_indices(draft)
    return NextVersion.of(draft)
