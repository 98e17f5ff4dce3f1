"""Whether a transaction may be committed on top of a version, and as what.

Facts are fetched here, decisions are made in `rules`: what can't be valid, what was committed since
it was read, how it has to change for that, whether what it brings is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from committerd.errors import (
    CorruptTable,
    InvalidRequest,
    RequestError,
    SettingsError,
    StoreUnavailable,
    UnsupportedRequest,
    UnsupportedTable,
)
from committerd.format.fragment_reuse import Content, require_addresses
from committerd.format.manifest_file import ManifestFile
from committerd.format.messages import Manifest, Transaction
from committerd.format.paths import VERSIONS
from committerd.format.support import require_supported
from committerd.judged import Judged, PrepareOptions, Rejected, World, refused_by
from committerd.ports import ObjectStore
from committerd.rules.answers import Status
from committerd.rules.brought import Brought, brought
from committerd.rules.conflicts import NOTHING_FOUND, Checked, Findings, Verdict, hold, reason
from committerd.rules.content import differing_schema, require_fits
from committerd.rules.draft import CreateOptions
from committerd.rules.excerpt import excerpt
from committerd.rules.footprint import AN_APPEND, Footprint, footprint_of_ours
from committerd.rules.invariants import require_sound_table
from committerd.rules.kind import Kind
from committerd.rules.normalise import normalised
from committerd.rules.rebase import (
    Rebased,
    ReuseContents,
    RowConflict,
    merge_deletions,
    plan_deletions,
    rebase_indices,
    rebase_reuse,
)
from committerd.rules.validation import Allowed, is_allowed_base, require_valid
from committerd.staged_files import (
    Allowance,
    Copy,
    LookedAt,
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
from committerd.table import Gap, Table
from committerd.working import heavy_size

_NEEDS_READ_VERSION = frozenset({Kind.DELETE, Kind.UPDATE, Kind.MERGE, Kind.PROJECT, Kind.REWRITE, Kind.CREATE_INDEX})
_T = TypeVar("_T")
_CREATES = frozenset({Kind.OVERWRITE, Kind.CLONE})


async def judge(
    table: Table,
    latest: ManifestFile | None,
    transaction: Transaction,
    *,
    options: PrepareOptions,
    world: World,
) -> Judged | Rejected:
    """Whether a transaction may be committed on top of `latest`, and as what. Writes nothing.

    Raises `UnsupportedTable` or `CorruptTable` when nothing may be built upon `latest`, and
    `StoreUnavailable`.
    """
    vet(table, latest)
    found = NOTHING_FOUND
    try:
        size = heavy_size(transaction, latest)
        valid = partial(_valid, transaction, latest, options.allowed, room=table.key_room)
        transaction, what, kind = await world.work(valid, size=size) if size else valid()
        refused = _existence(kind, latest, options)
        if refused is not None:
            return refused
        case = _Case(table=table, latest=latest, kind=kind, options=options, world=world, size=size)
        since = await _since_read(case, transaction)
        if isinstance(since, Rejected):
            return since
        if since is None:
            refused = _other_schema(case, transaction)
            if refused is not None:
                return refused
            return await _with_content(case, Judged(transaction=transaction, create=options.create), what)
        found = since.found
        judged = await _over_history(case, transaction, since)
        if isinstance(judged, Rejected):
            return judged
        if judged.transaction is not transaction:
            what = brought(judged.transaction)
        return await _with_content(case, judged, what)
    except RequestError as error:
        return refused_by(error, found)


def _valid(
    transaction: Transaction, latest: ManifestFile | None, allowed: Allowed, *, room: int
) -> tuple[Transaction, Brought, Kind]:
    """The transaction in its usual form, what it brings, and what it is. Raises as `require_valid`."""
    transaction = normalised(transaction)
    what = brought(transaction)
    latest_version = latest.version if latest else 0
    return (
        transaction,
        what,
        require_valid(transaction, what, latest_version=latest_version, allowed=allowed, room=room),
    )


def vet(table: Table, latest: ManifestFile | None) -> None:
    """Return when a version may be built upon `latest`; looks at each version once.

    Raises `UnsupportedTable` or `CorruptTable`: that is the table's fault, and of no record.
    """
    if latest is not None and table.vetted is not latest:
        require_supported(latest)
        require_sound_table(latest)
        table.vetted = latest


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

    table: Table
    latest: ManifestFile | None
    kind: Kind
    options: PrepareOptions
    world: World
    size: int
    """Of the transaction in bytes, where work on it may take long; else 0."""

    async def do(self, call: Callable[[], _T]) -> _T:
        """Work that waits for nothing, at once where it can't take long."""
        return await self.world.work(call, size=self.size) if self.size else call()

    def places(self, file: ManifestFile | None) -> Places:
        bases = file.outline.base_paths if file is not None else ()
        return Places(store=self.table.store, bases=bases, open_store=self.world.open_store)

    def readable_places(self, transaction: Transaction) -> Places:
        """Of the next version: its bases as far as the operator lets transactions name them."""
        bases = [*(self.latest.outline.base_paths if self.latest else ()), *transaction.overwrite.initial_bases]
        if bases:
            bases = [base for base in bases if is_allowed_base(base.path, self.options.allowed.bases)]
        return Places(store=self.table.store, bases=bases, open_store=self.world.open_store)


def _existence(kind: Kind, latest: ManifestFile | None, options: PrepareOptions) -> Rejected | None:
    """The answer to what makes a table that there is, or changes one that there isn't."""
    if latest is None:
        if kind in _CREATES:
            return None
        raise InvalidRequest(
            f"there is no table, and {kind} does not make one; stage an Overwrite first",
            code="no_table",
        )
    if kind is Kind.CLONE or (kind is Kind.OVERWRITE and options.create_only):
        return Rejected(
            status=Status.RETRYABLE,
            reason="table_exists",
            message=f"the table exists already, at version {latest.version}",
        )
    return None


def _other_schema(case: _Case, transaction: Transaction) -> Rejected | None:
    """The answer to an Append that nothing was read for, and that was written for another schema."""
    if case.kind is not Kind.APPEND or case.latest is None or transaction.read_version:
        return None
    differing = differing_schema(transaction, case.latest.outline)
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
    """The version it was read at; None when it can't be read, or nothing is asked of it."""
    then: Manifest | None
    """Its excerpt."""
    theirs: Sequence[Footprint]
    """What they touched; only for a CreateIndex, and without Appends."""
    found: Findings


async def _since_read(case: _Case, transaction: Transaction) -> _Since | Rejected | None:
    """Hold it against what was committed since it was read; None when that is nothing."""
    latest, after = case.latest, transaction.read_version
    if latest is None or after == 0 or after == latest.version:
        return None
    # What one Append of this read version has met, all of them meet.
    is_append = case.kind is Kind.APPEND
    before = case.table.met_by_appends(after) if is_append else NOTHING_FOUND
    if before.through == latest.version:
        return _Since(ours=AN_APPEND, read=None, then=None, theirs=(), found=before)
    read, then, ours = None, None, AN_APPEND
    if not is_append:
        read = await case.table.readable(after) if case.kind in _NEEDS_READ_VERSION else None
        read, then, ours = await case.do(partial(_footprint, transaction, read))
    found, last, theirs = before, None, list[Footprint]()
    async for some in case.table.history(max(before.through, after), latest.version):
        if isinstance(some, Gap):
            return _gap(transaction, some.version, latest.version, case.options)
        found, last = hold(ours, [(one.version, one.footprint) for one in some], found), some[-1]
        if case.kind is Kind.CREATE_INDEX:
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
    if case.kind in (Kind.DELETE, Kind.UPDATE):
        judged = await _with_deletions(case, transaction, since)
    elif case.kind is Kind.CREATE_INDEX:
        judged = await _with_indices(case, transaction, since)
    else:
        judged = Judged(transaction=transaction, found=since.found, create=case.options.create)
    return judged


async def _with_deletions(case: _Case, transaction: Transaction, since: _Since) -> Judged | Rejected:
    latest, read = case.latest, since.read
    assert latest is not None
    merges = await case.do(lambda: plan_deletions(transaction, since.then, excerpt(latest, transaction)))
    allowance = Allowance(case.options.file_limits)
    deletions = [
        await read_merge(
            merge,
            staged=case.places(latest),
            read=case.places(read),
            latest=case.places(latest),
            allowance=allowance,
        )
        for merge in merges
    ]
    merge = partial(
        merge_deletions,
        transaction,
        list(zip(merges, deletions, strict=True)),
        latest_version=latest.version,
        file_ids=iter(lambda: case.world.random.getrandbits(64), None),
    )
    rebased = await case.do(merge)
    if isinstance(rebased, RowConflict):
        shared = [one for one in since.found.conflicts if one.verdict is Verdict.REBASABLE]
        last = shared[-1] if shared else None
        return Rejected(
            status=Status.RETRYABLE,
            reason="row_conflict",
            message=f"{rebased.message}. Read version {latest.version} and do the work again",
            conflicting_version=last.version if last else 0,
            conflicting_operation=(last.theirs or "") if last else "",
            rule="row",
            found=since.found,
        )
    return _rebased(case, rebased, since)


async def _with_indices(case: _Case, transaction: Transaction, since: _Since) -> Judged:
    latest, read = case.latest, since.read
    assert latest is not None
    changed = await case.do(partial(rebase_indices, transaction, since.theirs))
    store = case.table.store
    ours = await _staged_reuse(store, changed)
    if ours is None or not any(one.reuse_version is not None for one in since.theirs):
        return _rebased(case, Rebased(transaction=changed), since)
    rebase = partial(
        rebase_reuse,
        changed,
        ReuseContents(
            ours=ours,
            read=await read_reuse(store, read.indices if read else ()) or type(ours)(),
            latest=await read_reuse(store, latest.indices) or type(ours)(),
        ),
        latest_version=latest.version,
        index_uuid=case.world.new_uuid().bytes,
    )
    rebased: Rebased = await case.do(rebase)
    return _rebased(case, rebased, since)


def _rebased(case: _Case, rebased: Rebased, since: _Since) -> Judged:
    return Judged(transaction=rebased.transaction, files=rebased.files, found=since.found, create=case.options.create)


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
    transaction: Transaction, what: Brought, latest: ManifestFile | None, create: CreateOptions
) -> Manifest | None:
    """As `require_fits`, with the excerpt of a whole version, which it returns."""
    found = excerpt(latest, transaction) if latest else None
    require_fits(transaction, what, found, create)
    return found


async def _with_content(case: _Case, judged: Judged, what: Brought) -> Judged:
    """Look at `what` it brings, and fetch the version that it names. Raises `RequestError`."""
    latest, table = case.latest, case.table
    found = await case.do(partial(_require_fits, judged.transaction, what, latest, case.options.create))
    looked = case.options.looked or LookedAt()
    if case.options.verify_files:
        await require_files(
            case.readable_places(judged.transaction),
            judged.transaction,
            what,
            current=found,
            written=judged.files,
            looked=looked,
            limits=case.options.file_limits,
        )
    transaction = await with_known_sizes(table.store, judged.transaction, what, looked, limits=case.options.file_limits)
    if transaction is not judged.transaction:
        judged = replace(judged, transaction=transaction)
    if case.kind is Kind.OVERWRITE:
        judged = replace(judged, transaction=await with_schema_metadata(case.places(latest), transaction))
    if case.kind is Kind.CREATE_INDEX:
        await _staged_reuse(table.store, transaction)
    if case.kind is Kind.RESTORE:
        restored = await table.readable(transaction.restore.version)
        _require_base_version(restored)
        return replace(judged, restored=restored)
    if case.kind is Kind.CLONE:
        return await _with_source(case, judged)
    return judged


async def _with_source(case: _Case, judged: Judged) -> Judged:
    clone = judged.transaction.clone
    if case.world.open_store is None:
        raise UnsupportedRequest("clones can't be made from here", code="clone_unsupported")
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
        f"this {case.kind} can't pass the {what} that was committed as version {deciding.version} (rule "
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
