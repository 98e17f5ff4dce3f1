"""Where committerd's knowledge ends, pylance builds the version (setting `commit.unknown`).

A table with a feature, and a transaction with an operation or a field, that committerd does not know may be known to a
later Lance. Then pylance builds the version, under a number outside the history (a detached version, without any check
of conflicts), and committerd puts it as the next version, with its own transaction, position and marks. So what is
promised of a version of the queue holds for this one too. docs/decisions/where-knowledge-ends.md says why.

No rule says with what such a transaction conflicts, so it is committed only if its read version is the latest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from committerd.errors import (
    CorruptTable,
    InvalidRequest,
    RequestError,
    StoreUnavailable,
    UnsupportedRequest,
    UnsupportedTable,
)
from committerd.lance.format.manifest_file import Body, ManifestFile, decode
from committerd.lance.format.support import require_supported
from committerd.lance.format.table_schema import TableSchema
from committerd.lance.operations.operation import AppliesTo
from committerd.lance.transactions.transaction import staged_files
from committerd.lance.transactions.validation import require_data_files, require_valid, require_valid_outside
from committerd.lance.versions.adopted import adopted, require_kept
from committerd.lance.versions.bases import is_allowed_base
from committerd.lance.versions.columns import DescribedFile, require_as_described, require_columns
from committerd.lance.versions.draft import BuildInput
from committerd.lance.versions.invariants import require_sound_table
from committerd.lance.versions.metadata import require_little_metadata
from committerd.lance.versions.schema import require_readable
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import Status
from committerd.table.case import PrepareOptions
from committerd.table.knowledge import Knowledge, known_in_full, operation_if_known
from committerd.table.needs import (
    BuiltByPylance,
    DeletionFile,
    FoundFile,
    NamedFile,
    PylanceBuilt,
    Staged,
    StagedFacts,
    Steps,
)
from committerd.table.places import data_file_location, deletion_file_location
from committerd.table.refusals import table_exists
from committerd.table.staged_files import require_files, require_none_at_fault
from committerd.table.versions import History
from committerd_common.messages import DataFile, Transaction
from committerd_common.paths import KEY_BYTES_MAX, NamingScheme
from committerd_common.unknown_fields import has_unknown_fields

BUILD = "committerd.build"
"""A transaction property. A committer has had a detached version built that has it, and nobody else needs it."""


def judged_by_pylance(
    history: History,
    latest: ManifestFile | None,
    transaction: Transaction,
    *,
    options: PrepareOptions,
    known: Knowledge,
) -> Transaction | Refused | None:
    """Judge a transaction that committerd does not know in full, or that meets a table which it does not know.

    Returns the transaction for pylance, or its refusal; None if committerd knows both. Raises `RequestError`, or
    `StoreUnavailable` if `latest` is formed ahead.
    """
    if latest is None or (known.covers(latest) and known_in_full(transaction)):
        return None
    operation = operation_if_known(transaction)
    if operation is not None:
        transaction = operation.normalised(transaction)
    version, allowed = latest.version, options.allowed
    if operation is not None and not has_unknown_fields(transaction):
        files, room = staged_files(transaction), history.table.key_room
        require_valid(operation, transaction, files, latest_version=version, allowed=allowed, key_bytes_max=room)
    else:
        require_valid_outside(operation, transaction, latest_version=version, allowed=allowed)
    creates = (AppliesTo.NEW, AppliesTo.ANY) if options.create_only else (AppliesTo.NEW,)
    if operation is not None and operation.target in creates:
        return table_exists(latest.version)
    if latest.version > history.created:
        raise StoreUnavailable(f"version {latest.version}, on which pylance is to build, is not put yet")
    if transaction.read_version in (0, latest.version):  # 0 is for operations that only add or replace
        return transaction
    return Refused(
        status=Status.RETRYABLE,
        reason="conflict",
        message=f"committerd does not know all of this transaction or of its table, and so not what it conflicts with: "
        f"it is committed only if no version follows the one that it read, {transaction.read_version}. Read version "
        f"{latest.version} and do the work again",
        conflicting_version=latest.version,
    )


def built_by_pylance(
    latest: ManifestFile,
    transaction: Transaction,
    given: BuildInput,
    *,
    scheme: NamingScheme | None,
    options: PrepareOptions | None,
) -> Steps[tuple[ManifestFile, Body]]:
    """Let pylance build the version that follows `latest`.

    `options`: those that the transaction was judged with; None = it is committerd's own. Raises `RequestError`.
    """
    asked = Transaction()
    asked.CopyFrom(transaction)
    asked.tag = ""  # pylance can't pass it on; it is a part of the manifest
    built = yield from _built(latest, asked, UUID(bytes=given.index_uuid), scheme)
    file, body = adopted(built.body, latest, transaction, asked=asked, given=given)
    require_little_metadata(latest.outline, file.outline)
    try:
        require_supported(file)
        require_sound_table(file)
    except UnsupportedTable:
        _require_next(built)
    except CorruptTable as error:
        raise InvalidRequest(f"the transaction can't be committed: {error}", code=error.code) from error
    if options is not None:
        yield from _require_content(latest, file, options)
    return file, body


def require_followed(
    latest: ManifestFile, error: UnsupportedTable, *, scheme: NamingScheme | None, uuid: UUID
) -> Steps[None]:
    """Return if pylance can build on a version on which committerd can't (`error`). Raises `UnsupportedTable`."""
    nothing = Transaction(read_version=latest.version)
    nothing.update_config.SetInParent()
    try:
        built = yield from _built(latest, nothing, uuid, scheme)
        require_kept(latest, decode(built.body))
    except (RequestError, CorruptTable) as refused:
        raise UnsupportedTable(f"{error}. Neither can pylance: {refused}", code=error.code) from refused


def _built(latest: ManifestFile, asked: Transaction, uuid: UUID, scheme: NamingScheme | None) -> Steps[PylanceBuilt]:
    """Let pylance build what `asked` makes of `latest`; uuid, read version and properties of `asked` are set here.

    The uuid is a new one, because pylance writes a transaction file, which must not replace that of any version.
    """
    if scheme is NamingScheme.V1:
        raise UnsupportedRequest(
            "the table's manifests have V1 names, and pylance builds no version of such a table without committing it. "
            "Stop all writers and call `migrate_manifest_paths_v2` of pylance",
            code="pylance_refused",
        )
    asked.uuid, asked.read_version = str(uuid), latest.version
    asked.transaction_properties.clear()
    asked.transaction_properties[BUILD] = str(latest.version + 1)
    built: PylanceBuilt = yield BuiltByPylance(latest.version, asked)
    return built


def _require_next(built: PylanceBuilt) -> None:
    """Check that pylance can commit on what it has built, and keeps all of it.

    Raises `InvalidRequest` (`stops_the_table`), or `UnsupportedRequest` as `require_kept`.
    """
    if built.next is None:
        raise InvalidRequest(
            f"nothing could be committed after this transaction, so it is refused: {built.refusal}",
            code="stops_the_table",
        )
    require_kept(decode(built.body), decode(built.next))


def _require_content(latest: ManifestFile, file: ManifestFile, options: PrepareOptions) -> Steps[None]:
    """Check what is known of the new content: schema, base paths, data files and deletion files.

    The files are those in the table's folder: their paths, and if files are verified, whether they are as the version
    says. Raises `RequestError`.
    """
    bases = {base.id: base.path for base in latest.outline.base_paths}
    for base in file.outline.base_paths:
        if bases.get(base.id) != base.path and not is_allowed_base(base.path, options.allowed.bases):
            raise UnsupportedRequest(
                f"base path {base.path} is not allowed here (setting commit.allowed_bases)", code="base_not_allowed"
            )
    if file.outline.fields != latest.outline.fields:
        require_readable(file.outline.fields)
    there = {(rows, one.SerializeToString(deterministic=True)) for rows, one in _data_files(latest)}
    added = [
        (rows, one)
        for rows, one in _data_files(file)
        if not one.HasField("base_id") and (rows, one.SerializeToString(deterministic=True)) not in there
    ]
    require_data_files((one for _, one in added), KEY_BYTES_MAX)
    named = [NamedFile(data_file_location(one, ()), one.file_size_bytes) for _, one in added]
    before = {one.id: one.deletion_file for one in latest.fragments if one.HasField("deletion_file")}
    deletions = [
        DeletionFile(one, deletion_file_location(one, (), staged=True), is_staged=True)
        for one in file.fragments
        if one.HasField("deletion_file")
        and one.deletion_file != before.get(one.id)
        and not one.deletion_file.HasField("base_id")
    ]
    if not (named or deletions) or not options.verify_files:
        return
    wanted = Staged(files=named, deletions=deletions, deletion_bytes_max=options.file_limits.bytes)
    facts: StagedFacts = yield wanted
    require_files(named, facts)
    require_none_at_fault(wanted, facts)
    schema = TableSchema(file.outline.fields)
    require_columns((one for _, one in added), schema)
    found = [(one, rows, facts.files[where.location]) for (rows, one), where in zip(added, named, strict=True)]
    require_as_described(
        (
            DescribedFile(one, rows, fact.said)
            for one, rows, fact in found
            if isinstance(fact, FoundFile) and fact.said is not None
        ),
        schema,
    )


def _data_files(file: ManifestFile) -> Iterator[tuple[int, DataFile]]:
    """Each data file, with the rows of its fragment."""
    for fragment in file.fragments:
        for one in fragment.files:
            yield fragment.physical_rows, one
