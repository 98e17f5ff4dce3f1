"""Whether what a transaction brings fits the table that it would be committed to.

Lance asks some of this of the version that the writer read, some after the manifest is built, and
some never. Here all of it is asked of the latest version, and before anything is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from committerd.errors import InvalidRequest
from committerd.format.feature_flags import CARRIED
from committerd.format.messages import DataFragment, Manifest, Transaction
from committerd.format.support import has_stable_row_ids
from committerd.rules.brought import Brought
from committerd.rules.draft import CreateOptions
from committerd.rules.fragments import file_version

_TOLD_MAX = 10


def require_fits(transaction: Transaction, what: Brought, latest: Manifest | None, create: CreateOptions) -> None:
    """Return when `what` the transaction brings can be built upon `latest` (None = there is no table).

    Raises `InvalidRequest`: `unknown_base`, `file_version`, `row_ids`, `merge_fragments`,
    `row_count_changed`, `replaced_fields`, `unknown_field`.
    """
    _require_bases(transaction, latest, _bases_used(transaction, what))
    _require_file_versions(transaction, latest, create, {file_version(file) for file in what.files})
    _require_row_ids(transaction, what.fragments, latest, create)
    if latest is None:
        return
    match transaction.WhichOneof("operation"):
        case "delete":
            _require_same_rows(transaction.delete.updated_fragments, latest)
        case "update":
            _require_same_rows(transaction.update.updated_fragments, latest)
        case "merge":
            _require_all_fragments(transaction.merge, latest)
        case "create_index" if transaction.read_version == latest.version:
            _require_fields(transaction.create_index, latest)
        case "data_replacement":
            _require_same_fields(transaction.data_replacement)
        case _:
            pass


def _require_fields(create: Transaction.CreateIndex, latest: Manifest) -> None:
    """What dropped a column after the index was built is a matter of the conflict rules."""
    fields = {field.id for field in latest.fields}
    for index in create.new_indices:
        if missing := sorted(set(index.fields) - fields):
            # pylance commits that, and then can't filter the table by any column.
            raise InvalidRequest(
                f"index {index.name!r} is on fields {missing}, which version {latest.version} does not have; its "
                f"fields are {sorted(fields)}. Build the index on a column of the table",
                code="unknown_field",
            )


def differing_schema(transaction: Transaction, latest: Manifest) -> str | None:
    """How the files of an Append that names no read version contradict the table's schema; None when nothing shows.

    With a read version, what changed the schema since then decides. Without one, only the fields of the files are left
    to compare: an Overwrite may have given their ids to columns of other types, which no field tells.
    """
    if transaction.read_version or not transaction.HasField("append"):
        return None
    known = {field.id for field in latest.fields}
    highest = max(known, default=-1)
    parents = {field.parent_id for field in latest.fields}
    required = {
        field.id: field.name
        for field in latest.fields
        if not field.nullable and field.parent_id == -1 and field.id not in parents
    }
    for fragment in transaction.append.fragments:
        has = {number for file in fragment.files for number in file.fields}
        if has.isdisjoint(known):
            return f"its files have fields {_some(has)}, of which the table has none"
        # A lower one that is not there is of a column that was dropped; readers pass over it.
        if above := {number for number in has if number > highest}:
            return f"its files have fields {_some(above)}, which the table does not have"
        if missing := required.keys() - has:
            names = [required[number] for number in sorted(missing)[:_TOLD_MAX]]
            return f"its files lack the columns {names}, which the table requires"
    return None


def _some(numbers: Collection[int]) -> str:
    told = ", ".join(map(str, sorted(numbers)[:_TOLD_MAX]))
    return told if len(numbers) <= _TOLD_MAX else f"{told} and {len(numbers) - _TOLD_MAX} more"


def _bases_used(transaction: Transaction, what: Brought) -> set[int]:
    used = {file.base_id for file in what.files if file.HasField("base_id")}
    for fragment in what.fragments:
        if fragment.HasField("deletion_file") and fragment.deletion_file.HasField("base_id"):
            used.add(fragment.deletion_file.base_id)
    if transaction.HasField("create_index"):
        used |= {index.base_id for index in transaction.create_index.new_indices if index.HasField("base_id")}
    return used


def _require_bases(transaction: Transaction, latest: Manifest | None, used: Collection[int]) -> None:
    initial: list[int] = []
    if transaction.HasField("overwrite"):
        initial = [base.id for base in transaction.overwrite.initial_bases]
        if len(set(initial)) != len(initial):
            raise InvalidRequest(f"initial_bases give one id twice: {initial}", code="duplicate_base")
    if not used:
        return
    bases = {base.id for base in latest.base_paths} if latest is not None else set()
    bases.update(initial)
    if unknown := sorted(set(used) - bases):
        raise InvalidRequest(
            f"files lie in bases {unknown}, which the table does not have; it has {sorted(bases)}. Add them with "
            "UpdateBases first",
            code="unknown_base",
        )


def _require_file_versions(
    transaction: Transaction, latest: Manifest | None, create: CreateOptions, versions: set[str | None]
) -> None:
    if None in versions or "0.1" in versions:
        raise InvalidRequest(
            "a data file has a file format that committerd does not write: versions 2.0 to 2.3 are known",
            code="file_version",
        )
    # Lance 14 lets 2.x versions mix and then locks out 4.x; a table where they have met stays so.
    mixed = latest is not None and bool(latest.reader_feature_flags & CARRIED)
    if len(versions) > 1 and not mixed:
        raise InvalidRequest(
            "All data files must have the same version. Detected both "
            + " and ".join(sorted(str(version) for version in versions)),
            code="file_version",
        )
    if not versions or mixed:
        return
    wanted = create.data_storage_version if latest is None else latest.data_format.version
    if transaction.HasField("overwrite") and latest is not None:
        return
    found = versions.pop()
    if wanted is not None and found != wanted:
        raise InvalidRequest(
            f"The operation added files with version {found}. However, the data storage version is {wanted}. Write "
            f"with data_storage_version={wanted!r}",
            code="file_version",
        )


def _require_row_ids(
    transaction: Transaction, fragments: Iterable[DataFragment], latest: Manifest | None, create: CreateOptions
) -> None:
    stable = create.enable_stable_row_ids if latest is None else has_stable_row_ids(latest)
    carries = transaction.WhichOneof("operation") in ("rewrite", "merge")
    for fragment in fragments:
        given = fragment.HasField("inline_row_ids")
        if given and not stable:
            raise InvalidRequest(
                f"fragment {fragment.id} has row ids, but rows of this table have no stable ids",
                code="row_ids",
            )
        if carries and stable and not given:
            raise InvalidRequest(
                f"fragment {fragment.id} has no row ids, but rows of this table keep theirs",
                code="row_ids",
            )


def _require_same_rows(updated: Iterable[DataFragment], latest: Manifest) -> None:
    rows = {fragment.id: fragment.physical_rows for fragment in latest.fragments}
    for fragment in updated:
        if rows.get(fragment.id, fragment.physical_rows) != fragment.physical_rows:
            raise InvalidRequest(
                f"fragment {fragment.id} has {rows[fragment.id]} rows, but is to be replaced by one of "
                f"{fragment.physical_rows}; only deletions and columns may change in place",
                code="row_count_changed",
            )


def _require_all_fragments(merge: Transaction.Merge, latest: Manifest) -> None:
    # Lance: transaction.rs, merge_fragments_valid.
    rows = {fragment.id: fragment.physical_rows for fragment in merge.fragments}
    if len(rows) < len(latest.fragments):
        raise InvalidRequest(
            f"Merge operation reduced fragment count from {len(latest.fragments)} to {len(rows)}",
            code="merge_fragments",
        )
    for fragment in latest.fragments:
        if fragment.id not in rows:
            raise InvalidRequest(
                f"Merge operation is missing original fragments: {fragment.id}", code="merge_fragments"
            )
        if rows[fragment.id] != fragment.physical_rows:
            raise InvalidRequest(
                f"Merge operation changed row count for fragment {fragment.id}: {fragment.physical_rows} to "
                f"{rows[fragment.id]}",
                code="merge_fragments",
            )


def _require_same_fields(replacement: Transaction.DataReplacement) -> None:
    fields = {tuple(group.new_file.fields) for group in replacement.replacements}
    if len(fields) > 1:
        raise InvalidRequest(
            f"DataReplacement replaces fields {sorted(fields)}; those of all its files must be the same",
            code="replaced_fields",
        )
