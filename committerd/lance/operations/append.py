"""Append: new fragments, added to those of the table."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from committerd.lance.conflicts.footprint import AN_APPEND, Footprint
from committerd.lance.conflicts.key_filter import appended_keys
from committerd.lance.format.kind import Kind
from committerd.lance.format.table_schema import TableSchema
from committerd.lance.format.wording import listed, quoted
from committerd.lance.operations.deletions import require_no_deletions
from committerd.lance.operations.operation import Operation, ReadVersion, ScalesWith, StagedFiles
from committerd.lance.operations.permissions import Permissions
from committerd.lance.versions.draft import Draft, finish
from committerd.lance.versions.fragments import files_of
from committerd_common.malformed import MalformedError, blamed
from committerd_common.messages import Transaction
from committerd_common.own_properties import KEY_HASH, KEYS


def _staged_files(transaction: Transaction) -> StagedFiles:
    fragments = transaction.append.fragments
    return StagedFiles(fragments, files_of(fragments))


def _validate(transaction: Transaction, allowed: Permissions, key_bytes_max: int) -> None:
    with blamed(f"property {KEYS}", code="reserved_key", staged=True):
        appended_keys(transaction)
    require_no_deletions(transaction.append.fragments)


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    if KEYS not in transaction.transaction_properties:
        return AN_APPEND
    try:
        return replace(AN_APPEND, key_filter=appended_keys(transaction))
    except MalformedError:
        return AN_APPEND  # another writer's: what it says of its keys is not understood, so they are not known


def _differing_schema(transaction: Transaction, schema: TableSchema) -> str:
    """With a read version, the conflict rules decide about schema changes since then. Without one, only the field ids
    of the files can be compared. They don't show an Overwrite that has reused the ids for columns of other types.
    """
    if transaction.read_version:
        return ""
    for fragment in transaction.append.fragments:
        has = frozenset(chain.from_iterable(file.fields for file in fragment.files))
        if difference := schema.once(_difference, has):
            return difference
    return ""


def _difference(schema: TableSchema, has: frozenset[int]) -> str:
    """The contradiction between the schema and a fragment whose files have these fields; empty if there is none."""
    if has.isdisjoint(schema.ids):
        return f"its files have fields {listed(sorted(has))}, of which the table has none"
    # A lower id that the schema lacks is that of a column that was dropped, whose data readers ignore, or that was
    # cast, and then its values would be lost: the column has got a higher id.
    if above := {number for number in has if number > schema.highest_id}:
        return f"its files have fields {listed(sorted(above))}, which the table does not have"
    gone = sorted(number for number in has - schema.ids if number >= 0)
    if gone and (later := sorted(number for number in schema.ids - schema.parents - has if number > gone[0])):
        return (
            f"its files have fields {listed(gone)}, which the table no longer has, and lack the later fields "
            f"{listed(later)}: perhaps the columns were cast meanwhile"
        )
    if missing := schema.required.keys() - has:
        names = listed([quoted(schema.required[number]) for number in sorted(missing)])
        return f"its files lack the columns {names}, which the table requires"
    return ""


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: transaction.rs, build_manifest, Append. Indices stay as they are."""
    draft.add_new_rows(transaction.append.fragments)
    finish(draft)


APPEND = Operation(
    kind=Kind.APPEND,
    read_version=ReadVersion.OPTIONAL,
    scales_with=ScalesWith.FRAGMENTS,
    staged_files=_staged_files,
    own_properties=frozenset({KEYS, KEY_HASH}),
    validate=_validate,
    differing_schema=_differing_schema,
    footprint=_footprint,
    build=_build,
)
