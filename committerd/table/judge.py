"""Judges whether a transaction may be committed on top of a version, and rebases it.

    valid -> compared with the versions since its read version -> rebased, or judged as a member by rows -> its files
    are there -> what building it needs

`lance` has the rules. This module asks for the facts that they need (`table.needs`), in this order, and reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from committerd.errors import (
    CommitterError,
    CorruptTable,
    InvalidRequest,
    RequestError,
    StoreUnavailable,
    UnsupportedRequest,
    UnsupportedTable,
)
from committerd.lance.conflicts.grid import NOTHING_FOUND, Comparison, Verdict, VersionVerdict, reason
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.support import has_stable_row_ids, require_supported
from committerd.lance.format.table_schema import TableSchema
from committerd.lance.operations.operation import AppliesTo, Input
from committerd.lance.operations.rebase import FollowedRows, RowConflict
from committerd.lance.rows.change import RowChange, RowsAndKeys, TouchedFragment, require_rows_moved, row_change
from committerd.lance.transactions.fit import require_fits, schema_after
from committerd.lance.transactions.transaction import operation_of, staged_files
from committerd.lance.transactions.validation import require_valid
from committerd.lance.versions.draft import CreateOptions
from committerd.lance.versions.fragments import differing_types
from committerd.lance.versions.invariants import require_sound_table
from committerd.queue.dedupe import Refused
from committerd.queue.rounds import Part, part_of
from committerd.table.by_pylance import judged_by_pylance, require_followed
from committerd.table.case import Case, PrepareOptions, Sources
from committerd.table.heavy_work import heavy_size_to_judge
from committerd.table.needs import (
    NOTHING_KNOWN,
    Copies,
    Copy,
    Described,
    EmptyFolders,
    InThread,
    NamedFile,
    OneVersion,
    Source,
    Staged,
    StagedFacts,
    Steps,
)
from committerd.table.places import Location, data_file_location
from committerd.table.rebasing import rebased_on, staged_reuse, too_much_to_follow
from committerd.table.refusals import (
    conflict_with,
    history_gap,
    refused_by,
    row_conflict,
    schema_differs,
    table_exists,
)
from committerd.table.row_groups import with_rows
from committerd.table.since import Since, since_read
from committerd.table.staged_files import (
    missing_file,
    needed,
    require_content,
    require_files,
    require_none_at_fault,
    with_known_sizes,
    with_schema_metadata,
)
from committerd.table.versions import Gap, History
from committerd_common.malformed import MalformedError
from committerd_common.messages import Manifest, Transaction
from committerd_common.paths import NamingScheme, index_prefix

_DESCRIBED_AT_ONCE = 16
"""Data files whose descriptors are in memory at the same time."""
_ROWS_AND_KEYS_FRAGMENTS_MAX = 64
"""Maximum number of fragments whose deletion files are read to find the rows of a refused transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A transaction that may be committed on top of the version it was judged against."""

    transaction: Transaction
    """Normalised and rebased."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Bodies of objects to write before the manifest, by key."""
    deletion_vectors: Mapping[str, BitMap] = field(default_factory=dict)
    """The rows that those of `files` hold that are deletion files, by key, as far as the next version needs them."""
    change: RowChange | None = None
    """The rows that it deletes and the keys that it inserts, if it was judged as a member: then it is not rebased, and
    `lance.rows.group` records it together with the other members.
    """
    moves: Sequence[tuple[int, frozenset[int]]] = ()
    """As `BuildInput.moves`."""
    copies: Sequence[Copy] = ()
    found: Comparison = NOTHING_FOUND
    followed: FollowedRows | None = None
    """The rows that were followed through Rewrites."""
    note: str = ""
    """What the rebase changed, for people; empty if there is nothing to say."""
    by_pylance: PrepareOptions | None = None
    """The options that it was judged with, if pylance builds the version (`table.by_pylance`); None = committerd does.
    """
    create: CreateOptions = field(default_factory=CreateOptions)
    restored: ManifestFile | None = None
    source: ManifestFile | None = None


def judge(
    history: History,
    latest: ManifestFile | None,
    transaction: Transaction,
    *,
    schema: TableSchema | None = None,
    facts: StagedFacts = NOTHING_KNOWN,
    options: PrepareOptions,
    sources: Sources,
) -> Steps[Judged | Refused]:
    """Judge whether a transaction may be committed on top of `latest`, and rebase it.

    `latest` must be the last version of `history`, and have passed `require_buildable`; None = there is no table.
    `schema`: of `latest`, shared by the transactions that are judged on it; None = this is the only one. `facts`: what
    is known of the files of the transaction. Raises `CorruptTable` when the table proves to be damaged.
    """
    found = NOTHING_FOUND
    try:
        if sources.knowledge is not None:
            outside = judged_by_pylance(history, latest, transaction, options=options, known=sources.knowledge)
            if outside is not None:
                return outside if isinstance(outside, Refused) else Judged(transaction=outside, by_pylance=options)
        size = heavy_size_to_judge(transaction, latest)
        if size:
            yield InThread(size)
        operation = operation_of(transaction)
        transaction = operation.normalised(transaction)
        case = Case(
            history=history,
            latest=latest,
            transaction=transaction,
            files=operation.staged_files(transaction),
            operation=operation,
            schema=schema or TableSchema(latest.outline.fields if latest is not None else ()),
            facts=facts,
            options=options,
            sources=sources,
            size=size,
        )
        version, room = latest.version if latest is not None else 0, history.table.key_room
        require_valid(
            operation,
            transaction,
            case.files,
            latest_version=version,
            allowed=options.allowed,
            key_bytes_max=room,
        )
        refused = _existence(case)
        if refused is not None:
            return refused
        since = yield from since_read(case)
        if isinstance(since, Gap):
            return history_gap(case, since)
        found = since.found if since is not None else NOTHING_FOUND
        if since is not None and since.refuses is not None:
            return replace(conflict_with(case, since), rows_and_keys=(yield from _rows_and_keys(case, since)))
        member = (yield from _as_member(case, since)) if options.as_member and latest is not None else None
        return member or (yield from _alone(case, since))
    except RequestError as error:
        return refused_by(error, found)


def require_buildable(latest: ManifestFile | None) -> None:
    """Return if a version may be built on `latest` (None = there is no table).

    Raises `UnsupportedTable` or `CorruptTable`: the table is at fault, not a record.
    """
    if latest is not None:
        require_supported(latest)
        require_sound_table(latest)


def require_buildable_by_any(
    latest: ManifestFile | None, *, scheme: NamingScheme | None, sources: Sources
) -> Steps[None]:
    """As `require_buildable`, and where committerd's knowledge ends, pylance may build the version instead."""
    try:
        require_buildable(latest)
    except UnsupportedTable as error:
        if latest is None or sources.knowledge is None:
            raise
        yield from require_followed(latest, error, scheme=scheme, uuid=sources.new_uuid())


def explain(checked: Iterable[VersionVerdict]) -> list[str]:
    """Describe each version that was checked in one line: operation, rule, verdict, and the rule's reason."""
    return [
        f"version {one.version} {one.theirs or 'unreadable'}: {one.rule} -> "
        f"{one.verdict.name.lower()}: {reason(one.rule)}"
        for one in checked
    ]


def _existence(case: Case) -> Refused | None:
    """Refuse an operation that creates a table which exists, or changes one that does not exist.

    Raises `InvalidRequest` (`no_table`) for the latter.
    """
    target = case.operation.target
    if case.latest is None:
        if target is not AppliesTo.EXISTING:
            return None
        raise InvalidRequest(
            f"there is no table, and {case.operation.kind} does not create one; stage an Overwrite first",
            code="no_table",
        )
    if target is AppliesTo.NEW or (target is AppliesTo.ANY and case.options.create_only):
        return table_exists(case.latest.version)
    return None


def _alone(case: Case, since: Since | None) -> Steps[Judged | Refused]:
    """Judge a transaction that passes all versions since its read version, as a version of its own."""
    latest = case.latest
    if since is not None and since.kept.is_too_much:
        assert latest is not None
        return row_conflict(too_much_to_follow(case), since, latest.version)
    if since is None and latest is not None:
        differing = case.operation.differing_schema(case.transaction, case.schema)
        if differing:
            return schema_differs(differing, latest.version)
    yield from case.in_thread()
    _require_as_read(case, (since.read if since is not None else None) or latest)
    if since is None:
        judged = Judged(transaction=case.transaction, create=case.options.create)
    else:
        assert latest is not None
        rebased = yield from rebased_on(case, since)
        if isinstance(rebased, RowConflict):
            return row_conflict(rebased, since, latest.version)
        judged = Judged(
            transaction=rebased.transaction,
            files=rebased.files,
            found=since.found,
            followed=rebased.followed,
            note=rebased.note or str(rebased.followed or ""),
            create=case.options.create,
        )
    judged = yield from _with_content(case, judged)
    if since is None and case.options.compares_types and latest is not None:
        return (yield from _of_other_types(case, judged, latest)) or judged
    return judged


def _require_as_read(case: Case, then: ManifestFile | None) -> None:
    """Check what the transaction says of the version `then` (None = no table). Raises `InvalidRequest`."""
    check = case.operation.validate_as_read
    if check is not None and then is not None:
        check(case.transaction, case.excerpt(then))


def _of_other_types(case: Case, judged: Judged, latest: ManifestFile) -> Steps[Refused | None]:
    """Refuse new data whose files say that its columns are of other types than the latest version's; None if they fit.

    Field ids alone don't show an Overwrite that has reused them.
    """
    bases, files = case.readable_bases(), case.files.data_files
    for low in range(0, len(files), _DESCRIBED_AT_ONCE):
        some = files[low : low + _DESCRIBED_AT_ONCE]
        said = yield Described([data_file_location(file, bases) for file in some])
        for file, one in zip(some, said, strict=True):
            differing = differing_types(file, one, latest.outline.fields)
            if differing:
                return schema_differs(differing, latest.version)
    return None


def _as_member(case: Case, since: Since | None) -> Steps[Judged | Refused | None]:
    """Judge a Delete or Update as a member of a version of several; None if it must be a version of its own."""
    latest = case.latest
    assert latest is not None
    if part_of(case.transaction) is not Part.ROWS:
        return None
    follows = since is not None and since.follows
    if follows:
        judged = yield from _alone(case, since)
        if isinstance(judged, Refused):
            return judged
    else:
        found = since.found if since is not None else NOTHING_FOUND
        judged = yield from _with_content(case, Judged(transaction=case.transaction, found=found))
    yield from case.in_thread()
    now = case.operation.excerpt(judged.transaction, latest)
    then = now if follows or since is None else since.then
    change = row_change(judged.transaction, then)
    if change is None or then is None:
        return judged if follows else None
    if has_stable_row_ids(latest.outline):
        require_rows_moved(judged.transaction, then)
    # What following has written is not in the store yet, and won't be: the version gets one deletion file for each
    # fragment, with the rows of all members.
    written = {key: BitMap.deserialize(body) for key, body in judged.files.items()}
    files = case.deletion_files(since.read if since is not None and not follows else latest, written)
    known, conflict = yield from with_rows(change, now, files)
    if conflict is not None:
        rows = known.rows_and_keys() if known is not None and case.options.tells_rows_and_keys else None
        return replace(row_conflict(conflict, since, latest.version), rows_and_keys=rows)
    assert known is not None
    if follows:
        known = replace(known, touched={id: TouchedFragment(rows=one.rows) for id, one in known.touched.items()})
    return replace(judged, files={}, change=known)


def _rows_and_keys(case: Case, since: Since) -> Steps[RowsAndKeys | None]:
    """The rows and keys of a Delete or Update that a committed one refuses; None if unknown or not requested."""
    deciding = since.refuses
    if not case.options.tells_rows_and_keys or deciding is None or deciding.verdict is not Verdict.RETRYABLE:
        return None
    if deciding.theirs not in (Kind.DELETE, Kind.UPDATE):
        return None
    yield from case.in_thread()
    try:
        change = row_change(case.transaction, since.then)
        if change is None or len(change.touched) > _ROWS_AND_KEYS_FRAGMENTS_MAX:
            return None
        known, _ = yield from with_rows(change, Manifest(), case.deletion_files(since.read))
    except (CommitterError, MalformedError):  # it is refused anyway
        return None
    return known.rows_and_keys() if known is not None else None


def _with_content(case: Case, judged: Judged) -> Steps[Judged]:
    """Check the staged files, and add what building the operation needs. Raises `RequestError`."""
    latest, transaction, options = case.latest, judged.transaction, case.options
    files = case.files if transaction is case.transaction else staged_files(transaction)
    yield from case.in_thread()
    current = case.operation.excerpt(transaction, latest) if latest is not None else None
    schema = schema_after(transaction, case.schema)
    may_mix = options.allowed.mixed_file_versions
    require_fits(transaction, files, current, schema=schema, create=options.create, may_mix=may_mix)
    if case.operation.completed is not None and current is not None:
        completed = case.operation.completed(transaction, current)
        if completed is not transaction:
            transaction, files = completed, staged_files(completed)
    verifies, facts = options.verify_files, case.facts
    wanted = needed(
        transaction,
        files,
        current,
        bases=case.readable_bases(),
        all_bases=case.all_bases(),
        limits=options.file_limits,
        verifies=verifies,
        written=judged.files,
    )
    if verifies:
        require_none_at_fault(wanted, facts)
    unanswered = wanted.unanswered_by(facts)
    if unanswered is not None:
        facts = facts.with_((yield unanswered))
        yield from case.in_thread()
    require_files(wanted.files, facts)
    if verifies:
        require_content(transaction, files, current, facts, schema=schema, wanted=wanted)
    transaction = with_known_sizes(transaction, files, facts, bases=case.all_bases())
    if transaction is not judged.transaction:
        judged = replace(judged, transaction=transaction)
    return (yield from _with_what_building_needs(case, judged))


def _with_what_building_needs(case: Case, judged: Judged) -> Steps[Judged]:
    """Add what building the operation needs to know. Raises `RequestError`."""
    transaction, needs = judged.transaction, case.operation.inputs
    unlisted = case.operation.unlisted_indices(transaction) if case.options.verify_files else ()
    if unlisted and (empty := (yield EmptyFolders([index_prefix(uuid) for uuid in unlisted]))):
        raise missing_file(sorted(empty))
    if Input.SCHEMA_METADATA in needs:
        judged = replace(judged, transaction=(yield from _with_schema_metadata(case, transaction)))
    if Input.STAGED_REUSE in needs:
        yield from staged_reuse(transaction, judged.files)
    if Input.RESTORED_VERSION in needs:
        judged = replace(judged, restored=_base_version((yield OneVersion(transaction.restore.version))))
    if Input.CLONED_TABLE in needs:
        judged = yield from _with_source(case, judged)
    return judged


def _with_source(case: Case, judged: Judged) -> Steps[Judged]:
    """Add the version that a Clone clones, and the objects that it copies."""
    clone = judged.transaction.clone
    source = _base_version((yield Source(clone)))
    judged = replace(judged, source=source)
    if clone.is_shallow or source is None:
        return judged
    copies = yield Copies(clone, source)
    if case.options.copy_clone:
        return replace(judged, copies=copies)
    targets = [NamedFile(Location(copy.target), 0) for copy in copies]
    require_files(targets, (yield Staged(files=targets, deletion_bytes_max=0)))
    return judged


def _with_schema_metadata(case: Case, transaction: Transaction) -> Steps[Transaction]:
    """Fill in the schema metadata of an Overwrite that lacks it, from its first data file."""
    file = next((file for fragment in transaction.overwrite.fragments for file in fragment.files), None)
    if transaction.overwrite.schema_metadata or file is None:
        return transaction
    try:
        (descriptor,) = yield Described([data_file_location(file, case.all_bases())])
    except (InvalidRequest, StoreUnavailable):
        if not file.HasField("base_id"):
            raise
        return transaction  # the file is in a base path that this process can't read
    return with_schema_metadata(transaction, descriptor)


def _base_version(file: ManifestFile | None) -> ManifestFile | None:
    """Return a version that the transaction names, if one may be built on it; None passes.

    Raises `UnsupportedRequest` otherwise: the request is at fault, not the table.
    """
    try:
        if file is not None:
            require_supported(file)
    except (UnsupportedTable, CorruptTable) as error:
        raise UnsupportedRequest(str(error), code=error.code) from error
    return file
