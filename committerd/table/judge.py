"""Whether a transaction may be committed on top of a version, and as what.

Facts are fetched here, and decisions are made in `lance` and `queue`: what can't be valid, what was committed since the
transaction was read, how it has to change for that, whether what it brings is there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

from committerd.errors import (
    CorruptTable,
    InvalidRequest,
    RequestError,
    SettingsError,
    StoreUnavailable,
    UnsupportedRequest,
    UnsupportedTable,
)
from committerd.lance.conflicts.footprint import AN_APPEND, Footprint
from committerd.lance.conflicts.grid import NOTHING_FOUND, Checked, Comparison, Verdict, hold, reason
from committerd.lance.format.fragment_reuse import Content, require_addresses
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.support import require_supported
from committerd.lance.operations.allowed import Allowed
from committerd.lance.operations.operation import Need, Operation, StagedFiles, Target
from committerd.lance.operations.rebase import RebaseFacts, ReuseContents, RowConflict
from committerd.lance.transactions.fit import require_fits
from committerd.lance.transactions.transaction import excerpt, footprint_of_ours, normalised, operation_of, staged_files
from committerd.lance.transactions.validation import require_valid
from committerd.lance.versions.bases import is_allowed_base
from committerd.lance.versions.draft import CreateOptions
from committerd.lance.versions.invariants import require_sound_table
from committerd.queue.outcomes import Status
from committerd.stores.port import ObjectStore
from committerd.table.history import History
from committerd.table.refusals import Rejected, refused_by
from committerd.table.staged_files import (
    Allowance,
    Copy,
    FileLimits,
    LookedAt,
    OpenStore,
    Places,
    copies_of,
    missing_file,
    missing_files,
    read_merge,
    read_reuse,
    require_files,
    with_known_sizes,
    with_schema_metadata,
)
from committerd.table.versions import Gap, Table
from committerd.table.work import Work, at_once, heavy_size
from committerd_common.messages import Manifest, Transaction
from committerd_common.paths import VERSIONS

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """What is asked and allowed beside the transaction itself."""

    allowed: Allowed = field(default_factory=Allowed)
    verify_files: bool = False
    """Check that the files which it brings exist."""
    file_limits: FileLimits = field(default_factory=FileLimits)
    looked: LookedAt | None = None
    """Which of its files were looked at already; what is found now is added there."""
    rules_out_duplicate: bool = False
    """Something else than the history says that it was not committed before."""
    create: CreateOptions = field(default_factory=CreateOptions)
    create_only: bool = False
    copy_clone: bool = False
    """A deep Clone copies the files; else they must exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What comes from outside: clock, random numbers, ids, and a way to other tables."""

    wall_clock: Callable[[], datetime]
    random: random.Random
    new_uuid: Callable[[], UUID]
    ahead_max: timedelta | None = None
    """How far ahead of the clock a version may be dated, to be later than the one before; None = as far as needed."""
    open_store: OpenStore | None = None
    """None = bases and clone sources can't be read."""
    work: Work = at_once
    """Does what may take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A transaction that may be committed on top of the version that it was judged against."""

    transaction: Transaction
    """Normalised and rebased."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """To be written before, by key."""
    copies: Sequence[Copy] = ()
    found: Comparison = NOTHING_FOUND
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
    """Whether a transaction may be committed on top of `latest`, and as what. Writes nothing.

    `latest` is the last version of `history`, and was vetted. Raises `StoreUnavailable`, and `CorruptTable` when the
    table turns out to be damaged.
    """
    found = NOTHING_FOUND
    try:
        size = heavy_size(transaction, latest)
        valid = partial(_valid, transaction, latest, options.allowed, room=history.table.key_room)
        transaction, files, operation = await world.work(valid, size=size) if size else valid()
        refused = _existence(operation, latest, options)
        if refused is not None:
            return refused
        case = _Case(history=history, latest=latest, operation=operation, options=options, world=world, size=size)
        since = await _since_read(case, transaction)
        if isinstance(since, Rejected):
            return since
        if since is None:
            refused = _other_schema(case, transaction)
            if refused is not None:
                return refused
            return await _with_content(case, Judged(transaction=transaction, create=options.create), files)
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
    transaction: Transaction, latest: ManifestFile | None, allowed: Allowed, *, room: int
) -> tuple[Transaction, StagedFiles, Operation]:
    """The normalised transaction, the files that it brings, and its operation. Raises as `require_valid`."""
    transaction = normalised(transaction)
    files = staged_files(transaction)
    require_valid(transaction, files, latest_version=latest.version if latest else 0, allowed=allowed, room=room)
    return transaction, files, operation_of(transaction)


def vet(latest: ManifestFile | None) -> None:
    """Return when a version may be built upon `latest`.

    Raises `UnsupportedTable` or `CorruptTable`: the table is at fault, and no record.
    """
    if latest is not None:
        require_supported(latest)
        require_sound_table(latest)


def explain(checked: Iterable[Checked]) -> list[str]:
    """One line for each version that was checked: operation, cell, verdict, rule."""
    return [
        f"version {one.version} {one.theirs or 'unreadable'}: {one.rule} -> "
        f"{one.verdict.name.lower()}: {reason(one.rule)}"
        for one in checked
    ]


@dataclass(slots=True, kw_only=True)
class _Case:
    """One transaction's surroundings. Not frozen, as that takes three times as long to make; nobody changes it."""

    history: History
    latest: ManifestFile | None
    operation: Operation
    options: PrepareOptions
    world: World
    size: int
    """Of the transaction in bytes, where work on it may take long; else 0."""

    @property
    def table(self) -> Table:
        return self.history.table

    async def do(self, call: Callable[[], _T]) -> _T:
        """Do work that waits for nothing, on the spot where it can't take long."""
        return await self.world.work(call, size=self.size) if self.size else call()

    def places(self, file: ManifestFile | None) -> Places:
        bases = file.outline.base_paths if file is not None else ()
        return Places(store=self.table.store, bases=bases, open_store=self.world.open_store)

    def readable_places(self, transaction: Transaction) -> Places:
        """Where files of the next version lie, without the bases that the operator lets no transaction name."""
        known = self.latest.outline.base_paths if self.latest else ()
        bases = [*known, *self.operation.initial_bases(transaction)]
        if bases:
            bases = [base for base in bases if is_allowed_base(base.path, self.options.allowed.bases)]
        return Places(store=self.table.store, bases=bases, open_store=self.world.open_store)


def _existence(operation: Operation, latest: ManifestFile | None, options: PrepareOptions) -> Rejected | None:
    """The answer to what makes a table that exists, or changes one that doesn't."""
    if latest is None:
        if operation.target is not Target.EXISTING:
            return None
        raise InvalidRequest(
            f"there is no table, and {operation.kind} does not create one; stage an Overwrite first",
            code="no_table",
        )
    if operation.target is Target.NEW or (operation.target is Target.ANY and options.create_only):
        return Rejected(
            status=Status.RETRYABLE,
            reason="table_exists",
            message=f"the table exists already, at version {latest.version}",
        )
    return None


def _other_schema(case: _Case, transaction: Transaction) -> Rejected | None:
    """The answer to an Append that nothing was read for, and whose data was written for another schema."""
    if case.latest is None:
        return None
    differing = case.operation.differing_schema(transaction, case.latest.outline)
    if differing is None:
        return None
    return Rejected(
        status=Status.RETRYABLE,
        reason="schema_differs",
        message=f"the data was not written for the schema of version {case.latest.version}: {differing}. "
        "Open the table, write the data again, and stage it with the version that you have opened",
    )


@dataclass(slots=True, kw_only=True)
class _Since:
    """What happened between the version that a transaction was read at and the latest. As `_Case`, never changed."""

    ours: Footprint
    read: ManifestFile | None
    """The version that it was read at; None when it is unreadable, or the operation doesn't need it."""
    then: Manifest | None
    """Its excerpt."""
    theirs: Sequence[Footprint]
    """What they touched, without Appends; empty for an operation that doesn't need it."""
    found: Comparison


async def _since_read(case: _Case, transaction: Transaction) -> _Since | Rejected | None:
    """Hold the transaction against what was committed since it was read; None when that is nothing."""
    operation = case.operation
    latest, after = case.latest, transaction.read_version
    if latest is None or after == 0 or after == latest.version:
        return None
    # What one Append of this read version has met, all of them meet.
    is_append = operation.kind is Kind.APPEND
    before = case.history.met_by_appends(after) if is_append else NOTHING_FOUND
    if before.through == latest.version:
        return _Since(ours=AN_APPEND, read=None, then=None, theirs=(), found=before)
    read, then, ours = None, None, AN_APPEND
    if not is_append:
        read = await case.table.readable(after) if Need.READ_VERSION in operation.needs else None
        read, then, ours = await case.do(partial(_footprint, transaction, read))
    found, last, theirs = before, None, list[Footprint]()
    async for some in case.history.since(max(before.through, after), latest.version):
        if isinstance(some, Gap):
            return _gap(transaction, some.version, latest.version, case.options)
        found, last = hold(ours, [(one.version, one.footprint) for one in some], found), some[-1]
        if Need.FOOTPRINTS in operation.needs:
            theirs += [f for one in some if isinstance(f := one.footprint, Footprint) and f.kind is not Kind.APPEND]
    if is_append and last is not None:
        case.table.note_met_by_appends(after, found, last)
    return _Since(ours=ours, read=read, then=then, theirs=theirs, found=found)


def _footprint(
    transaction: Transaction, read: ManifestFile | None
) -> tuple[ManifestFile | None, Manifest | None, Footprint]:
    """The version that it was read at, its excerpt, and what it touches."""
    then = excerpt(read, transaction) if read else None
    try:
        return read, then, footprint_of_ours(transaction, then, read.indices if read else ())
    except CorruptTable:
        # The damage is in an old version: as if that one could not be read.
        return None, None, footprint_of_ours(transaction, None)


async def _over_history(case: _Case, transaction: Transaction, since: _Since) -> Judged | Rejected:
    """Pass what was committed since, and rebase on it."""
    deciding = since.found.deciding
    if deciding is not None and deciding.verdict >= Verdict.RETRYABLE:
        return _conflict(case, since, deciding)
    rebase = case.operation.rebase
    if rebase is None:
        return Judged(transaction=transaction, found=since.found, create=case.options.create)
    facts = await _facts(case, transaction, since)
    rebased = await case.do(partial(rebase, transaction, facts))
    if isinstance(rebased, RowConflict):
        return _row_conflict(rebased, since, facts.latest_version)
    return Judged(transaction=rebased.transaction, files=rebased.files, found=since.found, create=case.options.create)


async def _facts(case: _Case, transaction: Transaction, since: _Since) -> RebaseFacts:
    """Read what rebasing the transaction takes."""
    latest, read, operation = case.latest, since.read, case.operation
    assert latest is not None
    plan = operation.deletions_to_merge
    merges = await case.do(lambda: plan(transaction, since.then, excerpt(latest, transaction)))
    allowance = Allowance(case.options.file_limits)
    then, now = case.places(read), case.places(latest)
    deletions = [await read_merge(merge, staged=now, read=then, latest=now, allowance=allowance) for merge in merges]
    reuse = await _reuse_contents(case, transaction, since, latest) if Need.STAGED_REUSE in operation.needs else None
    return RebaseFacts(
        latest_version=latest.version,
        theirs=since.theirs,
        deletions=list(zip(merges, deletions, strict=True)),
        file_ids=iter(lambda: case.world.random.getrandbits(64), None),
        reuse=reuse,
        index_uuid=case.world.new_uuid().bytes if reuse is not None else b"",
    )


async def _reuse_contents(
    case: _Case, transaction: Transaction, since: _Since, latest: ManifestFile
) -> ReuseContents | None:
    """What the fragment reuse index says, where ours brings one and theirs have added to it."""
    store, read = case.table.store, since.read
    ours = await _staged_reuse(store, transaction)
    if ours is None or not any(one.reuse_version is not None for one in since.theirs):
        return None
    return ReuseContents(
        ours=ours,
        read=await read_reuse(store, read.indices if read else ()) or Content(),
        latest=await read_reuse(store, latest.indices) or Content(),
    )


def _row_conflict(conflict: RowConflict, since: _Since, latest_version: int) -> Rejected:
    shared = [one for one in since.found.conflicts if one.verdict is Verdict.REBASABLE]
    last = shared[-1] if shared else None
    return Rejected(
        status=Status.RETRYABLE,
        reason="row_conflict",
        message=f"{conflict.message}. Read version {latest_version} and do the work again",
        conflicting_version=last.version if last else 0,
        conflicting_operation=(last.theirs or "") if last else "",
        rule="row",
        found=since.found,
    )


async def _staged_reuse(store: ObjectStore, transaction: Transaction) -> Content | None:
    """What a staged fragment reuse index says; what is wrong with it is its writer's."""
    try:
        content = await read_reuse(store, transaction.create_index.new_indices)
        if content is not None:
            require_addresses(content)
        return content
    except (CorruptTable, UnsupportedTable) as error:
        raise InvalidRequest(str(error), code=error.code) from error


def _require_fits(
    transaction: Transaction, files: StagedFiles, latest: ManifestFile | None, create: CreateOptions
) -> Manifest | None:
    """As `require_fits`, given a whole version; returns its excerpt."""
    found = excerpt(latest, transaction) if latest else None
    require_fits(transaction, files, found, create)
    return found


async def _with_content(case: _Case, judged: Judged, files: StagedFiles) -> Judged:
    """Check the `files` that it brings, and read what its operation needs to be built. Raises `RequestError`."""
    latest, table, needs = case.latest, case.table, case.operation.needs
    found = await case.do(partial(_require_fits, judged.transaction, files, latest, case.options.create))
    looked = case.options.looked or LookedAt()
    if case.options.verify_files:
        await require_files(
            case.readable_places(judged.transaction),
            judged.transaction,
            files,
            current=found,
            written=judged.files,
            looked=looked,
            limits=case.options.file_limits,
        )
    limits = case.options.file_limits
    transaction = await with_known_sizes(table.store, judged.transaction, files, looked, limits=limits)
    if transaction is not judged.transaction:
        judged = replace(judged, transaction=transaction)
    if not needs:
        return judged
    if Need.SCHEMA_METADATA in needs:
        judged = replace(judged, transaction=await with_schema_metadata(case.places(latest), transaction))
    if Need.STAGED_REUSE in needs:
        await _staged_reuse(table.store, transaction)
    if Need.RESTORED_VERSION in needs:
        restored = await table.readable(transaction.restore.version)
        _require_base_version(restored)
        judged = replace(judged, restored=restored)
    if Need.CLONED_TABLE in needs:
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
        await case.table.store.list(VERSIONS, limit=1)  # raises where nothing can be read, whatever a record names
        raise UnsupportedRequest(
            f"the table that is cloned can't be read: {error}", code="clone_unsupported"
        ) from error
    if case.options.copy_clone:
        return replace(judged, copies=copies)
    if missing := await missing_files(case.table.store, [copy.target for copy in copies]):
        raise missing_file(missing)
    return judged


async def _of_source(case: _Case, judged: Judged, store: ObjectStore) -> tuple[Judged, Sequence[Copy]]:
    """With the version that is cloned, and what a deep Clone copies of it."""
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
    """A version that ours names must be one that may be built upon; if it isn't, that is not the
    table's fault.
    """
    if file is None:
        return
    try:
        require_supported(file)
    except (UnsupportedTable, CorruptTable) as error:
        raise UnsupportedRequest(str(error), code=error.code) from error


def _gap(transaction: Transaction, gap: int, latest: int, options: PrepareOptions) -> Rejected:
    told = (
        f"version {gap}, after read_version {transaction.read_version} and before the latest {latest}, can't be read "
        "(cleaned up?), so it is not known what it changed"
    )
    if options.rules_out_duplicate:
        return Rejected(
            status=Status.RETRYABLE,
            reason="history_gap",
            message=f"{told}. Do the work again on version {latest}",
            conflicting_version=gap,
        )
    return Rejected(
        status=Status.UNDECIDED,
        reason="history_gap",
        message=f"{told}, nor whether this transaction was committed before. A person has to look",
        conflicting_version=gap,
    )


def _conflict(case: _Case, since: _Since, deciding: Checked) -> Rejected:
    assert case.latest is not None
    what, latest = deciding.theirs or "commit", case.latest.version
    retryable = deciding.verdict is Verdict.RETRYABLE
    blind = since.ours.files_read is None and deciding.rule in ("row", "upd") and retryable
    told = (
        f"this {case.operation.kind} can't pass the {what} that was committed as version {deciding.version} (rule "
        f"{deciding.rule}: {reason(deciding.rule)})"
    )
    if blind:
        told += ". Its read version is gone, so what it changed can't be told from what others did"
    advice = f"Read version {latest} and do the work again" if retryable else "It can't be committed"
    return Rejected(
        status=Status.RETRYABLE if retryable else Status.INCOMPATIBLE,
        reason="read_version_gone" if blind else "conflict",
        message=f"{told}. {advice}",
        conflicting_version=deciding.version,
        conflicting_operation=deciding.theirs or "",
        rule=deciding.rule,
        found=since.found,
    )
