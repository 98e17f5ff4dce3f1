"""From the current version and a transaction to the next version.

One short function for each operation, in `build_rows`, `build_indices`, `build_schema` and
`build_table`; here is the one place that picks it. Nothing is read and nothing is decided about
conflicts: what comes here may be committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

from committerd.errors import InvalidRequest
from committerd.format.fragment_list import NO_FRAGMENTS, FragmentList, pack
from committerd.format.manifest_file import ManifestFile
from committerd.format.messages import IndexMetadata, Manifest, Transaction
from committerd.rules import build_indices, build_rows, build_schema, build_table
from committerd.rules.draft import Draft, Given, first_draft, next_draft
from committerd.rules.footprint import Kind


@dataclass(frozen=True, kw_only=True)
class NextVersion:
    """What a build made. Nobody changes it."""

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
    """The version that follows `current` (None = there is no table), made by a normalised
    transaction.

    The arguments are left alone. Raises `InvalidRequest` for what can't be made of the current
    version.
    """
    kind = Kind(transaction.WhichOneof("operation") or "")
    creates = kind is Kind.OVERWRITE or kind is Kind.CLONE
    if current is None and not creates:
        raise InvalidRequest(
            f"there is no table yet, and {kind} does not make one; stage an Overwrite first",
            code="no_table",
        )
    if current is not None and kind is Kind.CLONE:
        raise InvalidRequest(f"Clone makes a table, but there is one at version {current.version}", code="table_exists")
    draft = first_draft(given) if current is None else next_draft(current, given)
    draft.manifest.tag = transaction.tag
    _apply(kind, draft, transaction)
    return NextVersion(
        manifest=draft.manifest,
        indices=tuple(draft.indices),
        touched=None if draft.touched is None else frozenset(draft.touched),
        kept=draft.kept,
    )


def _apply(kind: Kind, draft: Draft, transaction: Transaction) -> None:
    match kind:
        case Kind.APPEND:
            build_rows.append(draft, transaction.append)
        case Kind.DELETE:
            build_rows.delete(draft, transaction.delete)
        case Kind.UPDATE:
            build_rows.update(draft, transaction.update)
        case Kind.OVERWRITE:
            build_rows.overwrite(draft, transaction.overwrite)
        case Kind.CREATE_INDEX:
            build_indices.create_index(draft, transaction.create_index)
        case Kind.REWRITE:
            build_rows.rewrite(draft, transaction.rewrite)
        case Kind.MERGE:
            build_rows.merge(draft, transaction.merge)
        case Kind.RESTORE:
            build_table.restore(draft, transaction.restore)
        case Kind.RESERVE_FRAGMENTS:
            build_table.reserve_fragments(draft, transaction.reserve_fragments)
        case Kind.PROJECT:
            build_schema.project(draft, transaction.project)
        case Kind.UPDATE_CONFIG:
            build_schema.update_config(draft, transaction.update_config)
        case Kind.DATA_REPLACEMENT:
            build_rows.data_replacement(draft, transaction.data_replacement)
        case Kind.UPDATE_MEM_WAL_STATE:
            build_indices.update_mem_wal_state(draft, transaction.update_mem_wal_state)
        case Kind.CLONE:
            build_table.clone(draft, transaction.clone)
        case Kind.UPDATE_BASES:
            build_table.update_bases(draft, transaction.update_bases)
        case _:
            assert_never(kind)
