"""UpdateBases: additional base paths, in which later transactions may have files."""

from __future__ import annotations

from committerd.errors import InvalidRequest
from committerd.lance.conflicts.footprint import BaseFootprint, Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.operations.operation import Operation, ScalesWith
from committerd.lance.operations.permissions import Permissions
from committerd.lance.versions.bases import base_names, next_base_id, require_allowed_bases
from committerd.lance.versions.draft import Draft, finish
from committerd_common.messages import Transaction


def _names(transaction: Transaction) -> list[tuple[str, str]]:
    return base_names(transaction.update_bases.new_bases)


def _validate(transaction: Transaction, allowed: Permissions, key_bytes_max: int) -> None:
    require_allowed_bases("UpdateBases", transaction.update_bases.new_bases, allowed.bases)


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    return Footprint(
        kind=Kind.UPDATE_BASES,
        bases=tuple(
            BaseFootprint(id=base.id, name=base.name if base.HasField("name") else None, path=base.path)
            for base in transaction.update_bases.new_bases
        ),
    )


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: transaction.rs, build_manifest, UpdateBases. Names and paths are unique; only one base may lack a name."""
    manifest = draft.manifest
    for base in transaction.update_bases.new_bases:
        name = base.name if base.HasField("name") else None
        for known in manifest.base_paths:
            known_name = known.name if known.HasField("name") else None
            if name == known_name or base.path == known.path or base.id == known.id != 0:
                raise InvalidRequest(
                    f"UpdateBases adds base {base.id} {name!r} at {base.path!r}, but base {known.id} is {known_name!r} "
                    f"at {known.path!r}: ids, names and paths must differ, and only one base may lack a name",
                    code="base_taken",
                )
        added = manifest.base_paths.add()
        added.CopyFrom(base)
        if added.id == 0:
            added.id = next_base_id(manifest)
    finish(draft)


UPDATE_BASES = Operation(
    kind=Kind.UPDATE_BASES,
    scales_with=ScalesWith.UNBOUNDED,
    names=_names,
    validate=_validate,
    footprint=_footprint,
    build=_build,
)
