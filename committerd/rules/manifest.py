"""From the current version and a transaction to the next version.

Each operation says how (`Operation.build`). Nothing is read here, and nothing is decided about conflicts: what comes
here may be committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from committerd.errors import InvalidRequest
from committerd.format.fragment_list import NO_FRAGMENTS, FragmentList, pack
from committerd.format.manifest_file import ManifestFile
from committerd.format.messages import IndexMetadata, Manifest, Transaction
from committerd.rules.draft import Given, first_draft, next_draft
from committerd.rules.operations.operation import Target
from committerd.rules.transaction import operation_of


@dataclass(frozen=True, kw_only=True)
class NextVersion:
    """What a build made, which nobody changes."""

    manifest: Manifest
    """`fragments` has those that are new, and those that were looked at."""
    indices: Sequence[IndexMetadata]
    touched: frozenset[int] | None
    """Ids of the fragments that are new or not as they were; None = all in `manifest` may be."""
    kept: FragmentList = NO_FRAGMENTS
    """The other fragments, ascending: as they are in the current version."""

    @cached_property
    def packed(self) -> tuple[Manifest, FragmentList]:
        """`manifest` as its outline and its own fragments."""
        return pack(self.manifest)


def build(current: ManifestFile | None, transaction: Transaction, given: Given) -> NextVersion:
    """The version that follows `current` (None = there is no table), made by a normalised transaction.

    The arguments are left alone. Raises `InvalidRequest` for what can't be made of the current version.
    """
    operation = operation_of(transaction)
    if current is None and operation.target is Target.EXISTING:
        raise InvalidRequest(
            f"there is no table yet, and {operation.kind} does not make one; stage an Overwrite first",
            code="no_table",
        )
    if current is not None and operation.target is Target.NEW:
        raise InvalidRequest(f"Clone makes a table, but there is one at version {current.version}", code="table_exists")
    draft = first_draft(given) if current is None else next_draft(current, given)
    draft.manifest.tag = transaction.tag
    operation.build(draft, transaction)
    return NextVersion(
        manifest=draft.manifest,
        indices=tuple(draft.indices),
        touched=None if draft.touched is None else frozenset(draft.touched),
        kept=draft.kept,
    )
