"""Project: a new schema without new data: columns are dropped, moved or renamed."""

from __future__ import annotations

from committerd.errors import InvalidRequest
from committerd.lance.format.kind import Kind
from committerd.lance.operations.operation import Input, Operation, ScalesWith
from committerd.lance.operations.permissions import Permissions
from committerd.lance.operations.schema_change import compared_with, footprint
from committerd.lance.versions.columns import require_same_types
from committerd.lance.versions.draft import Draft, finish
from committerd.lance.versions.fragments import keep_files
from committerd.lance.versions.schema import require_readable
from committerd_common.messages import Manifest, Transaction


def _validate(transaction: Transaction, allowed: Permissions, key_bytes_max: int) -> None:
    require_readable(transaction.project.schema)


def _validate_on(transaction: Transaction, latest: Manifest) -> None:
    require_same_types(latest.fields, transaction.project.schema)


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: transaction.rs, build_manifest, Project. A data file is dropped if none of its columns is left."""
    draft.open_all()
    draft.set_schema(transaction.project.schema)
    fields = {field.id for field in transaction.project.schema}
    for fragment in draft.manifest.fragments:
        keep_files(fragment, lambda file: not fields.isdisjoint(file.fields))
        if not fragment.files:
            # pylance 14.0.2 commits that, and then can't read the table.
            raise InvalidRequest(
                f"Project drops every column that fragment {fragment.id} has data of, and readers need at least one "
                "column; give its rows a value in another column first, or delete the rows",
                code="fragment_without_files",
            )
    draft.keep_useful_indices()
    finish(draft, {fragment.id for fragment in draft.manifest.fragments})


PROJECT = Operation(
    kind=Kind.PROJECT,
    scales_with=ScalesWith.UNBOUNDED,
    inputs=frozenset({Input.READ_VERSION, Input.VERSION_BELOW}),
    validate=_validate,
    validate_on=_validate_on,
    footprint=footprint,
    footprint_of_ours=compared_with,
    footprint_of_theirs=compared_with,
    build=_build,
)
