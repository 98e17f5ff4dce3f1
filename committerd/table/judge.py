"""Judges whether a transaction may be committed on top of a version, and rebases it.

This module fetches facts; `lance` decides: whether the transaction is valid, whether it conflicts with the versions
committed since its read version, how it is rebased on them, and whether it fits the table. This module also checks that
the staged files exist.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from pyroaring import BitMap

from committerd.concurrency import for_each
from committerd.errors import (
    CommitterError,
    CorruptTable,
    InvalidRequest,
    RequestError,
    SettingsError,
    StoreUnavailable,
    UnsupportedRequest,
    UnsupportedTable,
)
from committerd.lance.conflicts.footprint import AN_APPEND, Footprint
from committerd.lance.conflicts.grid import (
    FOLLOWING,
    NOTHING_FOUND,
    Comparison,
    Verdict,
    VersionVerdict,
    compared,
    reason,
)
from committerd.lance.conflicts.rules import not_followed
from committerd.lance.format.fragment_reuse import Content, require_addresses
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.support import has_stable_row_ids, require_supported
from committerd.lance.operations.operation import AppliesTo, Input, Operation, StagedFiles
from committerd.lance.operations.permissions import Permissions
from committerd.lance.operations.rebase import (
    DeletionRead,
    FollowedRows,
    FollowFacts,
    FollowingRebase,
    RebasedTransaction,
    RebaseFacts,
    ReuseContents,
    RowConflict,
)
from committerd.lance.operations.rebase_footprints import REBASE_BYTES_MAX, RebaseFootprints
from committerd.lance.rows.change import RowChange, RowsAndKeys, TouchedFragment, require_rows_moved, row_change
from committerd.lance.rows.group import MemberConflict
from committerd.lance.transactions.fit import require_fits
from committerd.lance.transactions.transaction import excerpt, footprint_of_ours, normalised, operation_of, staged_files
from committerd.lance.transactions.validation import require_valid
from committerd.lance.versions.bases import is_allowed_base
from committerd.lance.versions.draft import CreateOptions
from committerd.lance.versions.fragments import differing_types
from committerd.lance.versions.invariants import require_sound_table
from committerd.queue.outcomes import Status
from committerd.queue.rounds import Part, part_of
from committerd.stores.port import ObjectStore
from committerd.table.history import History
from committerd.table.refusals import Rejected, refused_by
from committerd.table.row_groups import with_rows
from committerd.table.staged_files import (
    Allowance,
    CheckedFiles,
    Copy,
    FileLimits,
    OpenStore,
    Places,
    copies_of,
    described,
    missing_file,
    missing_files,
    read_merge,
    read_reuse,
    read_wanted,
    require_files,
    with_known_sizes,
    with_schema_metadata,
)
from committerd.table.versions import Committed, Gap, Table
from committerd.table.work import Work, at_once, comparing_size, following_size, heavy_size_to_judge
from committerd_common.malformed import MalformedError
from committerd_common.messages import BasePath, DataFile, Manifest, Transaction
from committerd_common.paths import VERSIONS

_T = TypeVar("_T")

_ROWS_AND_KEYS_FRAGMENTS_MAX = 64
"""Maximum number of fragments whose deletion files are read to find the rows of a refused transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """What the request and the operator's settings ask for or allow, besides the transaction itself."""

    allowed: Permissions = field(default_factory=Permissions)
    verify_files: bool = False
    """Check that the staged files exist."""
    file_limits: FileLimits = field(default_factory=FileLimits)
    checked_files: CheckedFiles | None = None
    """Staged files that were found already; those found now are added to it."""
    rules_out_duplicate: bool = False
    """Something other than the history proves that the transaction was not committed before."""
    create: CreateOptions = field(default_factory=CreateOptions)
    create_only: bool = False
    compares_types: bool = False
    """Whether an Append at read version 0 is compared with the table by the types in its data files too."""
    copy_clone: bool = False
    """Whether a deep Clone copies the files; if not, they must exist."""
    trusts_rewrites: bool = False
    """Whether the Rewrites of all writers count as in order."""
    tells_rows_and_keys: bool = False
    """Whether the refusal of a Delete or Update says which rows and keys it has (`Rejected.rows_and_keys`)."""
    lists_checked: bool = True
    """Whether the result lists each version that the transaction was compared with (`Comparison.checked`)."""
    as_member: bool = False
    """Whether a Delete or Update that only deletes and adds rows is judged as a member of a version of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The sources of time, randomness and ids, and access to other stores."""

    wall_clock: Callable[[], datetime]
    random: random.Random
    new_uuid: Callable[[], UUID]
    ahead_max: timedelta | None = None
    """How far a version's timestamp may run ahead of the clock to exceed that of the version below; None = any."""
    open_store: OpenStore | None = None
    """Opens the store of a base path or of the source of a Clone; None = those can't be read."""
    work: Work = at_once
    """Runs pure work that may take long."""


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
    """As `Given.moves`."""
    copies: Sequence[Copy] = ()
    found: Comparison = NOTHING_FOUND
    followed: FollowedRows | None = None
    """The rows that were followed through Rewrites."""
    note: str = ""
    """What the rebase changed, for people; empty if there is nothing to say."""
    create: CreateOptions = field(default_factory=CreateOptions)
    restored: ManifestFile | None = None
    source: ManifestFile | None = None


async def judge(
    history: History,
    latest: ManifestFile | None,
    transaction: Transaction,
    *,
    options: PrepareOptions,
    world: World,
) -> Judged | Rejected:
    """Judge whether a transaction may be committed on top of `latest`, and rebase it. Writes nothing.

    `latest` must be the last version of `history`, and checked by `vet`; None = there is no table. Raises
    `StoreUnavailable`, and `CorruptTable` when the table turns out to be damaged.
    """
    found = NOTHING_FOUND
    try:
        size = heavy_size_to_judge(transaction, latest)
        valid = partial(_valid, transaction, latest, options.allowed, key_bytes_max=history.table.key_room)
        transaction, files, operation = await world.work(valid, size=size) if size else valid()
        refused = _existence(operation, latest, options)
        if refused is not None:
            return refused
        case = _Case(history=history, latest=latest, operation=operation, options=options, world=world, size=size)
        since = await _since_read(case, transaction)
        if isinstance(since, Rejected):
            return since
        if options.as_member and latest is not None and part_of(transaction) is Part.ROWS:
            member = await _as_member(case, latest, transaction, since)
            if member is not None:
                return member
        if since is None:
            refused = _other_schema(case, transaction)
            if refused is not None:
                return refused
            await _require_as_read(case, transaction, latest)
            complete = await _with_content(case, Judged(transaction=transaction, create=options.create), files)
            refused = await _other_types(case, complete, files) if options.compares_types else None
            return refused or complete
        found = since.found
        judged = await _over_history(case, transaction, since)
        if isinstance(judged, Rejected):
            return judged
        if judged.transaction is not transaction:
            files = staged_files(judged.transaction)
        return await _with_content(case, judged, files)
    except RequestError as error:
        return refused_by(error, found)


def _valid(
    transaction: Transaction, latest: ManifestFile | None, allowed: Permissions, *, key_bytes_max: int
) -> tuple[Transaction, StagedFiles, Operation]:
    """Return the normalised transaction, its staged files and its operation. Raises as `require_valid`."""
    transaction = normalised(transaction)
    files = staged_files(transaction)
    require_valid(
        transaction, files, latest_version=latest.version if latest else 0, allowed=allowed, key_bytes_max=key_bytes_max
    )
    return transaction, files, operation_of(transaction)


def vet(latest: ManifestFile | None) -> None:
    """Return if a version may be built on `latest` (None = there is no table).

    Raises `UnsupportedTable` or `CorruptTable`: the table is at fault, not a record.
    """
    if latest is not None:
        require_supported(latest)
        require_sound_table(latest)


def explain(checked: Iterable[VersionVerdict]) -> list[str]:
    """Describe each version that was checked in one line: operation, rule, verdict, and the rule's reason."""
    return [
        f"version {one.version} {one.theirs or 'unreadable'}: {one.rule} -> "
        f"{one.verdict.name.lower()}: {reason(one.rule)}"
        for one in checked
    ]


@dataclass(slots=True, kw_only=True)
class _Case:
    """The context in which one transaction is judged.

    Never modified, and not frozen only because a frozen one takes three times as long to create.
    """

    history: History
    latest: ManifestFile | None
    operation: Operation
    options: PrepareOptions
    world: World
    size: int
    """Size of the transaction in bytes if work on it may take long, else 0."""

    @property
    def table(self) -> Table:
        return self.history.table

    async def do(self, call: Callable[[], _T]) -> _T:
        """Run pure work: directly if it is light, else through `World.work`."""
        return await self.world.work(call, size=self.size) if self.size else call()

    def places(self, file: ManifestFile | None) -> Places:
        bases = file.outline.base_paths if file is not None else ()
        return self._places(bases)

    def readable_places(self, transaction: Transaction) -> Places:
        """Where the files of the next version lie, without base paths that the operator's settings do not allow."""
        known = self.latest.outline.base_paths if self.latest else ()
        bases = [*known, *self.operation.initial_bases(transaction)]
        if bases:
            bases = [base for base in bases if is_allowed_base(base.path, self.options.allowed.bases)]
        return self._places(bases)

    def _places(self, bases: Sequence[BasePath]) -> Places:
        return places_of(self.history, bases, self.world)


def places_of(history: History, bases: Sequence[BasePath], world: World) -> Places:
    """Where the files of a version of this history lie; `bases` are its base paths."""
    return Places(
        store=history.table.store,
        bases=bases,
        open_store=world.open_store,
        deletion_vectors=history.table.deletion_vectors,
        unwritten=history.unwritten,
    )


def _existence(operation: Operation, latest: ManifestFile | None, options: PrepareOptions) -> Rejected | None:
    """Refuse an operation that creates a table which exists, or changes one that does not exist.

    Raises `InvalidRequest` (`no_table`) for the latter.
    """
    if latest is None:
        if operation.target is not AppliesTo.EXISTING:
            return None
        raise InvalidRequest(
            f"there is no table, and {operation.kind} does not create one; stage an Overwrite first",
            code="no_table",
        )
    if operation.target is AppliesTo.NEW or (operation.target is AppliesTo.ANY and options.create_only):
        return Rejected(
            status=Status.RETRYABLE,
            reason="table_exists",
            message=f"the table exists already, at version {latest.version}",
        )
    return None


def _other_schema(case: _Case, transaction: Transaction) -> Rejected | None:
    """Refuse an Append whose data was written for another schema than the latest version's; None when it may pass."""
    if case.latest is None:
        return None
    differing = case.operation.differing_schema(transaction, case.latest.outline)
    return None if differing is None else _schema_differs(differing, case.latest.version)


async def _other_types(case: _Case, judged: Judged, files: StagedFiles) -> Rejected | None:
    """Refuse new data whose files say that its columns are of other types than the latest version's; None if they fit.

    Field ids alone don't show an Overwrite that has reused them.
    """
    if case.latest is None:
        return None
    schema, places = case.latest.outline.fields, case.readable_places(judged.transaction)
    differing: list[str] = []

    async def compare(file: DataFile) -> None:
        if not differing:
            found = differing_types(file, await described(places, file), schema)
            differing.extend([found] if found else [])

    await for_each(files.data_files, compare)
    return _schema_differs(differing[0], case.latest.version) if differing else None


def _schema_differs(differing: str, version: int) -> Rejected:
    return Rejected(
        status=Status.RETRYABLE,
        reason="schema_differs",
        message=f"the data was not written for the schema of version {version}: {differing}. "
        "Open the table, write the data again, and stage it with the version that you have opened",
    )


@dataclass(slots=True, kw_only=True)
class _Since:
    """The comparison of a transaction with the versions since its read version. Never modified, as `_Case`."""

    ours: Footprint
    read: ManifestFile | None
    """The read version; None when it is unreadable, or the operation doesn't need it."""
    then: Manifest | None
    """The excerpt of the read version."""
    kept: RebaseFootprints
    """What was kept of the versions since then, to rebase the transaction."""
    found: Comparison
    unfollowed: str = ""
    """Why rows can't be followed through the version that decides; empty if that is not the reason."""


async def _since_read(case: _Case, transaction: Transaction) -> _Since | Rejected | None:
    """Compare the transaction with the versions committed since its read version; None when there are none."""
    operation = case.operation
    latest, after = case.latest, transaction.read_version
    if latest is None or after == 0 or after == latest.version:
        return None
    # All Appends with the same read version compare alike.
    is_append = operation.kind is Kind.APPEND
    before = case.history.compared_appends(after) if is_append else NOTHING_FOUND
    if before.through == latest.version:
        return _Since(ours=AN_APPEND, read=None, then=None, kept=RebaseFootprints(), found=before)
    read, then, ours = None, None, AN_APPEND
    if not is_append:
        read = await case.table.readable(after) if Input.READ_VERSION in operation.inputs else None
        read, then, ours = await case.do(partial(_footprint, transaction, read))
        if case.options.trusts_rewrites:
            ours = replace(ours, trusts_rewrites=True)
    found, last, kept, unfollowed = before, None, operation.rebase_footprints(ours), ""
    async for some in case.history.since(max(before.through, after), latest.version):
        if isinstance(some, Gap):
            return _gap(transaction, some.version, latest.version, case.options)
        call = partial(_compare, ours, some, found, kept, lists_all=case.options.lists_checked)
        size = comparing_size(transaction, ours, len(some))
        decided = found.deciding
        found = await case.world.work(call, size=size) if size else call()
        last = some[-1]
        if found.deciding is not decided:
            unfollowed = _unfollowed(ours, some, found.deciding)
    if is_append and last is not None:
        case.table.note_compared_appends(after, found, last)
    return _Since(ours=ours, read=read, then=then, kept=kept, found=found, unfollowed=unfollowed)


def _compare(
    ours: Footprint, some: Sequence[Committed], before: Comparison, kept: RebaseFootprints, *, lists_all: bool
) -> Comparison:
    """Compare ours with a few more versions, and keep what a rebase needs of them."""
    found = compared(ours, [(one.version, one.footprint) for one in some], before, lists_all=lists_all)
    if found.deciding is not None and found.deciding.verdict >= Verdict.RETRYABLE:
        kept.drop()
        return found
    for one in some:
        if isinstance(one.footprint, Footprint) and one.footprint.kind is not Kind.APPEND:
            kept.add(one.version, one.footprint)
    return found


def _unfollowed(ours: Footprint, some: Sequence[Committed], deciding: VersionVerdict | None) -> str:
    """`_Since.unfollowed`, if one of these versions decides."""
    if deciding is None or deciding.verdict < Verdict.RETRYABLE or deciding.rule not in FOLLOWING:
        return ""
    theirs = next(one.footprint for one in some if one.version == deciding.version)
    return not_followed(ours, theirs) if isinstance(theirs, Footprint) else ""


async def _require_as_read(case: _Case, transaction: Transaction, then: ManifestFile | None) -> None:
    """Check what the transaction says of the version `then` (None = no table). Raises `InvalidRequest`."""
    check = case.operation.validate_as_read
    if check is not None and then is not None:
        await case.do(lambda: check(transaction, excerpt(then, transaction)))


def _footprint(
    transaction: Transaction, read: ManifestFile | None
) -> tuple[ManifestFile | None, Manifest | None, Footprint]:
    """Return the read version, its excerpt, and the transaction's footprint."""
    then = excerpt(read, transaction) if read else None
    try:
        return read, then, footprint_of_ours(transaction, then, read.indices if read else ())
    except CorruptTable:
        # An old version is damaged: treat it as unreadable.
        return None, None, footprint_of_ours(transaction, None)


async def _over_history(case: _Case, transaction: Transaction, since: _Since) -> Judged | Rejected:
    """Refuse the transaction if it conflicts with a version committed since its read version, else rebase it."""
    deciding = since.found.deciding
    if deciding is not None and deciding.verdict >= Verdict.RETRYABLE:
        return _conflict(case, since, deciding)
    if since.kept.is_too_much:
        assert case.latest is not None
        problem = f"the changes since its read version take more than {REBASE_BYTES_MAX // 2**20} MiB to follow"
        rule = "indexed_fragment_rewritten" if case.operation.kind is Kind.CREATE_INDEX else "moved_rows"
        return _row_conflict(RowConflict(message=problem, rule=rule), since, case.latest.version)
    await _require_as_read(case, transaction, since.read or case.latest)
    rebase, follow = case.operation.rebase, case.operation.follow
    rebased: RebasedTransaction | RowConflict
    if follow is not None and any(one.rule in FOLLOWING for one in since.found.conflicts):
        rebased = await _followed(case, transaction, since, follow)
    elif rebase is not None:
        rebased = await case.do(partial(rebase, transaction, await _facts(case, transaction, since)))
    else:
        rebased = RebasedTransaction(transaction=transaction)
    if isinstance(rebased, RowConflict):
        assert case.latest is not None
        return _row_conflict(rebased, since, case.latest.version)
    return Judged(
        transaction=rebased.transaction,
        files=rebased.files,
        found=since.found,
        followed=rebased.followed,
        note=rebased.note or str(rebased.followed or ""),
        create=case.options.create,
    )


async def _followed(
    case: _Case, transaction: Transaction, since: _Since, follow: Callable[[Transaction, FollowFacts], FollowingRebase]
) -> RebasedTransaction | RowConflict:
    """Rebase the transaction by following rows through Rewrites, and read the deletion files that this needs."""
    latest = case.latest
    assert latest is not None
    assert since.then is not None  # without the read version no rule lets rows be followed
    facts = FollowFacts(
        latest_version=latest.version,
        read=since.then,
        latest=latest.fragments.of,
        theirs=since.kept.parts,
        trusts_all=case.options.trusts_rewrites,
        file_ids=_file_ids(case),
    )
    places, allowance = case.places(latest), Allowance(case.options.file_limits)
    following = follow(transaction, facts)
    size = case.size or following_size(transaction, since.then, since.kept.footprints)
    rows: Sequence[BitMap] | None = None
    while True:
        call = partial(_next_step, following, rows)
        step = await case.world.work(call, size=size) if size else call()
        if isinstance(step, RebasedTransaction | RowConflict):
            return step
        rows = await read_wanted(places, step, allowance=allowance)


def _next_step(
    following: FollowingRebase, rows: Sequence[BitMap] | None
) -> Sequence[DeletionRead] | RebasedTransaction | RowConflict:
    """Go on with what was read (None = begin); return what is to be read next, or the result."""
    try:
        return next(following) if rows is None else following.send(rows)
    except StopIteration as end:
        result: RebasedTransaction | RowConflict = end.value
        return result


def _file_ids(case: _Case) -> Iterator[int]:
    return iter(lambda: case.world.random.getrandbits(64), None)


async def _as_member(
    case: _Case, latest: ManifestFile, transaction: Transaction, since: _Since | None
) -> Judged | Rejected | None:
    """Judge a Delete or Update as a member of a version of several; None if it must be a version of its own."""
    deciding = since.found.deciding if since is not None else None
    if since is not None and deciding is not None and deciding.verdict >= Verdict.RETRYABLE:
        return replace(_conflict(case, since, deciding), rows_and_keys=await _rows_and_keys(case, transaction, since))
    if since is not None and any(one.rule in FOLLOWING for one in since.found.conflicts):
        return await _as_followed_member(case, latest, transaction, since)
    judged = Judged(transaction=transaction, found=since.found if since is not None else NOTHING_FOUND)
    judged = await _with_content(case, judged, staged_files(transaction))
    then = excerpt(latest, judged.transaction) if since is None else since.then
    change = await case.do(lambda: row_change(judged.transaction, then))
    if change is None or then is None:
        return None
    if has_stable_row_ids(latest.outline):
        await case.do(lambda: require_rows_moved(judged.transaction, then))
    now = excerpt(latest, judged.transaction)
    known, conflict = await with_rows(change, now, case.places(latest), limits=case.options.file_limits)
    if conflict is not None:
        return _member_conflict(case, conflict, since, latest.version, known=known)
    return replace(judged, change=known)


async def _rows_and_keys(case: _Case, transaction: Transaction, since: _Since) -> RowsAndKeys | None:
    """The rows and keys of a Delete or Update that a committed one refuses; None if unknown or not requested."""
    deciding, latest = since.found.deciding, case.latest
    if not case.options.tells_rows_and_keys or deciding is None or latest is None:
        return None
    if deciding.verdict is not Verdict.RETRYABLE or deciding.theirs not in (Kind.DELETE, Kind.UPDATE):
        return None
    try:
        change = await case.do(lambda: row_change(transaction, since.then))
        if change is None or len(change.touched) > _ROWS_AND_KEYS_FRAGMENTS_MAX:
            return None
        known, _ = await with_rows(change, Manifest(), case.places(latest), limits=case.options.file_limits)
    except (CommitterError, MalformedError):  # it is refused anyway
        return None
    return known.rows_and_keys() if known is not None else None


async def _as_followed_member(
    case: _Case, latest: ManifestFile, transaction: Transaction, since: _Since
) -> Judged | Rejected:
    """As `_as_member`, for a transaction whose rows must be followed to where Rewrites moved them."""
    judged = await _over_history(case, transaction, since)
    if isinstance(judged, Rejected):
        return judged
    judged = await _with_content(case, judged, staged_files(judged.transaction))
    now = excerpt(latest, judged.transaction)
    change = await case.do(lambda: row_change(judged.transaction, now))
    if change is None:
        return judged
    if has_stable_row_ids(latest.outline):
        await case.do(lambda: require_rows_moved(judged.transaction, now))
    written = {key: BitMap.deserialize(body) for key, body in judged.files.items()}
    places = replace(case.places(latest), unwritten={**case.history.unwritten, **written})
    known, conflict = await with_rows(change, now, places, limits=case.options.file_limits)
    if conflict is not None:
        return _member_conflict(case, conflict, since, latest.version, known=known)
    assert known is not None
    # Its deletion files are not written: the version gets one for each fragment, with the rows of all members.
    touched = {id: TouchedFragment(rows=one.rows) for id, one in known.touched.items()}
    return replace(judged, files={}, change=replace(known, touched=touched))


def can_not_follow(conflict: MemberConflict, judged: Judged, *, version: int, tells_rows_and_keys: bool) -> Rejected:
    """The refusal of a transaction that can't follow another one in the same `version`.

    `tells_rows_and_keys`: as in `PrepareOptions`.
    """
    change = judged.change if tells_rows_and_keys else None
    return Rejected(
        status=Status.RETRYABLE,
        reason="row_conflict" if conflict.rule == "same_row" else "conflict",
        message=f"this transaction can't follow the {conflict.kind} that is committed in version {version}: "
        f"{conflict.message}. Read version {version} and do the work again",
        conflicting_version=version,
        conflicting_operation=conflict.kind,
        rule=conflict.rule,
        found=judged.found,
        rows_and_keys=change.rows_and_keys() if change is not None else None,
    )


def goes_later(first: RowsAndKeys, judged: Judged, *, rows_and_keys: RowsAndKeys | None) -> Rejected:
    """The refusal of a transaction that conflicts with rows that an earlier one has reserved.

    `rows_and_keys`: as in `Rejected`.
    """
    return Rejected(
        status=Status.RETRYABLE,
        reason="row_conflict",
        message=f"this transaction and an earlier {first.kind} change the same row or may insert the same key. The "
        "earlier one was refused and is being executed again, and it goes first. Do the work again on the latest "
        "version",
        conflicting_operation=first.kind,
        rule="same_row",
        found=judged.found,
        rows_and_keys=rows_and_keys,
    )


async def _facts(case: _Case, transaction: Transaction, since: _Since) -> RebaseFacts:
    """Read the facts that rebasing the transaction needs."""
    latest, read, operation = case.latest, since.read, case.operation
    assert latest is not None
    plan = operation.deletions_to_merge
    merges = await case.do(lambda: plan(transaction, since.then, excerpt(latest, transaction)))
    allowance = Allowance(case.options.file_limits)
    then, now = case.places(read), case.places(latest)
    deletions = [await read_merge(merge, staged=now, read=then, latest=now, allowance=allowance) for merge in merges]
    reuse = await _reuse_contents(case, transaction, since, latest) if Input.STAGED_REUSE in operation.inputs else None
    return RebaseFacts(
        latest_version=latest.version,
        theirs=since.kept.footprints,
        schema=latest.outline.fields,
        deletions=list(zip(merges, deletions, strict=True)),
        file_ids=_file_ids(case),
        reuse=reuse,
        index_uuid=case.world.new_uuid().bytes if reuse is not None else b"",
    )


async def _reuse_contents(
    case: _Case, transaction: Transaction, since: _Since, latest: ManifestFile
) -> ReuseContents | None:
    """Read the fragment reuse index at the read version, as staged, and at the latest version.

    None unless the transaction stages one and a version since its read version has changed it.
    """
    store, kept, read = case.table.store, case.table.reuse, since.read
    ours = await _staged_reuse(store, transaction)
    if ours is None or not any(theirs.reuse_version is not None for theirs in since.kept.footprints):
        return None
    return ReuseContents(
        ours=ours,
        read=await read_reuse(store, read.indices if read else (), kept=kept, is_old=True) or Content(),
        latest=await read_reuse(store, latest.indices, kept=kept) or Content(),
    )


def _row_conflict(conflict: RowConflict, since: _Since | None, latest_version: int) -> Rejected:
    found = since.found if since is not None else NOTHING_FOUND
    operations = {one.version: one.theirs for one in found.conflicts}
    if since is not None:
        operations |= {version: theirs.kind for version, theirs in since.kept.parts}
    version = conflict.version
    if version not in operations:
        version = max((one.version for one in found.conflicts if one.verdict is Verdict.REBASABLE), default=0)
    return Rejected(
        status=Status.RETRYABLE,
        reason="row_conflict" if conflict.rule == "same_row" else "conflict",
        message=f"{conflict.message}. Read version {latest_version} and do the work again",
        conflicting_version=version,
        conflicting_operation=operations.get(version) or "",
        rule=conflict.rule,
        found=found,
    )


def _member_conflict(
    case: _Case, conflict: RowConflict, since: _Since | None, latest_version: int, *, known: RowChange | None
) -> Rejected:
    """As `_row_conflict`, for a member of a version of several. `known`: its rows and keys; None if not known."""
    rejected = _row_conflict(conflict, since, latest_version)
    if known is None or not case.options.tells_rows_and_keys:
        return rejected
    return replace(rejected, rows_and_keys=known.rows_and_keys())


async def _staged_reuse(
    store: ObjectStore, transaction: Transaction, *, written: Mapping[str, bytes] = MappingProxyType({})
) -> Content | None:
    """Read a staged fragment reuse index; None when there is none. Raises `InvalidRequest` when it is damaged.

    `written`: bodies of files that a rebase has made for it, by key.
    """
    try:
        content = await read_reuse(store, transaction.create_index.new_indices, written=written)
        if content is not None:
            require_addresses(content)
        return content
    except (CorruptTable, UnsupportedTable) as error:
        raise InvalidRequest(str(error), code=error.code) from error


def _require_fits(
    transaction: Transaction, files: StagedFiles, latest: ManifestFile | None, create: CreateOptions
) -> Manifest | None:
    """Call `require_fits` with the excerpt of `latest`, and return that excerpt; None when there is no table."""
    found = excerpt(latest, transaction) if latest else None
    require_fits(transaction, files, found, create)
    return found


async def _with_content(case: _Case, judged: Judged, files: StagedFiles) -> Judged:
    """Check the staged `files`, and read the facts that building the operation needs. Raises `RequestError`."""
    latest, table, needs = case.latest, case.table, case.operation.inputs
    found = await case.do(partial(_require_fits, judged.transaction, files, latest, case.options.create))
    complete = case.operation.completed
    if complete is not None and found is not None:
        completed = await case.do(partial(complete, judged.transaction, found))
        if completed is not judged.transaction:
            judged, files = replace(judged, transaction=completed), staged_files(completed)
    checked_files = case.options.checked_files or CheckedFiles()
    if case.options.verify_files:
        await require_files(
            case.readable_places(judged.transaction),
            judged.transaction,
            files,
            current=found,
            written=judged.files,
            checked_files=checked_files,
            limits=case.options.file_limits,
            do=case.do,
        )
    limits = case.options.file_limits
    places = case.places(latest)
    transaction = await with_known_sizes(places, judged.transaction, files, checked_files, limits=limits)
    if transaction is not judged.transaction:
        judged = replace(judged, transaction=transaction)
    if not needs:
        return judged
    if Input.SCHEMA_METADATA in needs:
        judged = replace(judged, transaction=await with_schema_metadata(places, transaction))
    if Input.STAGED_REUSE in needs:
        await _staged_reuse(table.store, transaction, written=judged.files)
    if Input.RESTORED_VERSION in needs:
        restored = await table.readable(transaction.restore.version)
        _require_base_version(restored)
        judged = replace(judged, restored=restored)
    if Input.CLONED_TABLE in needs:
        judged = await _with_source(case, judged)
    return judged


async def _with_source(case: _Case, judged: Judged) -> Judged:
    clone = judged.transaction.clone
    if case.world.open_store is None:
        raise UnsupportedRequest("committerd can't make clones here", code="clone_unsupported")
    try:
        store = case.world.open_store(clone.ref_path)
    except SettingsError as error:
        raise UnsupportedRequest(f"the table that is cloned: {error}", code="clone_unsupported") from error
    try:
        judged, copies = await _of_source(case, judged, store)
    except StoreUnavailable as error:
        await case.table.store.list(VERSIONS, limit=1)  # raises `StoreUnavailable` if this store can't be read either
        raise UnsupportedRequest(
            f"the table that is cloned can't be read: {error}", code="clone_unsupported"
        ) from error
    if case.options.copy_clone:
        return replace(judged, copies=copies)
    if missing := await missing_files(case.table.store, [copy.target for copy in copies]):
        raise missing_file(missing)
    return judged


async def _of_source(case: _Case, judged: Judged, store: ObjectStore) -> tuple[Judged, Sequence[Copy]]:
    """Add the version that is cloned; also return the objects that a deep Clone copies."""
    clone, origin = judged.transaction.clone, Table(store)
    await origin.latest_version()
    source = await origin.readable(clone.ref_version)
    _require_base_version(source)
    judged = replace(judged, source=source)
    if clone.is_shallow or source is None:
        return judged, ()
    places = Places(store=store, bases=source.outline.base_paths, open_store=case.world.open_store)
    return judged, await copies_of(source, places)


def _require_base_version(file: ManifestFile | None) -> None:
    """Return if a version that the transaction names may be built on; None passes.

    Raises `UnsupportedRequest` otherwise: the request is at fault, not the table.
    """
    if file is None:
        return
    try:
        require_supported(file)
    except (UnsupportedTable, CorruptTable) as error:
        raise UnsupportedRequest(str(error), code=error.code) from error


def _gap(transaction: Transaction, gap: int, latest: int, options: PrepareOptions) -> Rejected:
    problem = (
        f"version {gap}, after read_version {transaction.read_version} and before the latest {latest}, can't be read "
        "(cleaned up?), so it is not known what it changed"
    )
    if options.rules_out_duplicate:
        return Rejected(
            status=Status.RETRYABLE,
            reason="history_gap",
            message=f"{problem}. Do the work again on version {latest}",
            conflicting_version=gap,
        )
    return Rejected(
        status=Status.UNDECIDED,
        reason="history_gap",
        message=f"{problem}, nor whether this transaction was committed before. Check whether its data is in the table",
        conflicting_version=gap,
    )


def _conflict(case: _Case, since: _Since, deciding: VersionVerdict) -> Rejected:
    assert case.latest is not None
    what, latest = deciding.theirs or "commit", case.latest.version
    retryable = deciding.verdict is Verdict.RETRYABLE
    blind = since.ours.files_read is None and deciding.rule in ("same_row", "same_row_or_key") and retryable
    problem = (
        f"this {case.operation.kind} can't pass the {what} that was committed as version {deciding.version} (rule "
        f"{deciding.rule}: {reason(deciding.rule).rstrip('.')})"
    )
    if since.unfollowed:
        problem += f". Rows can't be followed here: {since.unfollowed}"
    if blind:
        problem += ". Its read version is gone, so its changes can't be separated from those of others"
    advice = f"Read version {latest} and do the work again" if retryable else "It can't be committed"
    return Rejected(
        status=Status.RETRYABLE if retryable else Status.INCOMPATIBLE,
        reason="read_version_gone" if blind else "conflict",
        message=f"{problem}. {advice}",
        conflicting_version=deciding.version,
        conflicting_operation=deciding.theirs or "",
        rule=deciding.rule,
        found=since.found,
    )
