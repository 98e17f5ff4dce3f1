"""Whether a transaction may be committed on top of a version, and as what.

Facts are fetched here, decisions are made in `rules`: what can't be valid, what was committed since
it was read, how it has to change for that, whether what it brings is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from committerd.errors import (
    CorruptTable,
    InvalidRequest,
    RequestError,
    SettingsError,
    UnsupportedRequest,
    UnsupportedTable,
)
from committerd.format.fragment_reuse import Content
from committerd.format.manifest_file import ManifestFile
from committerd.format.messages import Manifest, Transaction
from committerd.format.support import require_supported
from committerd.judged import Judged, PrepareOptions, Rejected, World, refused_by
from committerd.ports import ObjectStore
from committerd.rules.answers import Status
from committerd.rules.brought import Brought, brought
from committerd.rules.conflicts import NOTHING_FOUND, Checked, Findings, Verdict, hold, reason
from committerd.rules.content import require_fits
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
from committerd.rules.validation import require_valid
from committerd.staged_files import (
    Places,
    copies_of,
    missing_file,
    missing_files,
    read_merge,
    read_reuse,
    staged_keys,
    with_known_sizes,
)
from committerd.table import History, Table

_NEEDS_READ_VERSION = frozenset({Kind.DELETE, Kind.UPDATE, Kind.MERGE, Kind.PROJECT, Kind.REWRITE, Kind.CREATE_INDEX})
_CREATES = frozenset({Kind.OVERWRITE, Kind.CLONE})
_NO_HISTORY = History()


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
    if latest is not None and table.vetted is not latest:
        require_supported(latest)
        require_sound_table(latest)
        table.vetted = latest
    found = NOTHING_FOUND
    try:
        transaction = normalised(transaction)
        what = brought(transaction)
        latest_version = latest.version if latest else 0
        kind = require_valid(transaction, what, latest_version=latest_version, allowed=options.allowed)
        refused = _existence(kind, latest, options)
        if refused is not None:
            return refused
        case = _Case(table=table, latest=latest, kind=kind, options=options, world=world)
        since = await _since_read(case, transaction)
        if isinstance(since, Rejected):
            return since
        if since is None:
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

    def places(self, file: ManifestFile | None) -> Places:
        bases = file.outline.base_paths if file is not None else ()
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


@dataclass(slots=True, kw_only=True)
class _Since:
    """What happened between the version that a transaction was read at and the latest. As `_Case`, never changed."""

    ours: Footprint
    read: ManifestFile | None
    """The version it was read at; None when it can't be read, or nothing is asked of it."""
    then: Manifest | None
    """Its excerpt."""
    history: History
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
        return _Since(ours=AN_APPEND, read=None, then=None, history=_NO_HISTORY, found=before)
    history = await case.table.history(max(before.through, after), latest.version)
    if history.gap is not None:
        return _gap(transaction, history.gap, latest.version, case.options)
    read = await case.table.readable(after) if case.kind in _NEEDS_READ_VERSION else None
    then = excerpt(read, transaction) if read else None
    try:
        ours = footprint_of_ours(transaction, then, read.indices if read else ())
    except CorruptTable:
        # The damage is in an old version: as if that one could not be read.
        read, then, ours = None, None, footprint_of_ours(transaction, None)
    found = hold(ours, [(one.version, one.footprint) for one in history.committed], before)
    if is_append and history.committed:
        case.table.note_met_by_appends(after, found, history.committed[-1])
    return _Since(ours=ours, read=read, then=then, history=history, found=found)


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
    merges = plan_deletions(transaction, since.then, excerpt(latest, transaction))
    deletions = [
        await read_merge(
            merge,
            staged=case.places(latest),
            read=case.places(read),
            latest=case.places(latest),
        )
        for merge in merges
    ]
    rebased = merge_deletions(
        transaction,
        list(zip(merges, deletions, strict=True)),
        latest_version=latest.version,
        file_ids=iter(lambda: case.world.random.getrandbits(64), None),
    )
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
    theirs = [one.footprint for one in since.history.committed if isinstance(one.footprint, Footprint)]
    changed = rebase_indices(transaction, theirs)
    store = case.table.store
    ours = await _staged_reuse(store, changed)
    if ours is None or not any(one.reuse_version is not None for one in theirs):
        return _rebased(case, Rebased(transaction=changed), since)
    rebased: Rebased = rebase_reuse(
        changed,
        ReuseContents(
            ours=ours,
            read=await read_reuse(store, read.indices if read else ()) or type(ours)(),
            latest=await read_reuse(store, latest.indices) or type(ours)(),
        ),
        latest_version=latest.version,
        index_uuid=case.world.new_uuid().bytes,
    )
    return _rebased(case, rebased, since)


def _rebased(case: _Case, rebased: Rebased, since: _Since) -> Judged:
    return Judged(transaction=rebased.transaction, files=rebased.files, found=since.found, create=case.options.create)


async def _staged_reuse(store: ObjectStore, transaction: Transaction) -> Content | None:
    """What a staged fragment reuse index says; what is wrong with it is its writer's."""
    try:
        return await read_reuse(store, transaction.create_index.new_indices)
    except (CorruptTable, UnsupportedTable) as error:
        raise InvalidRequest(str(error), code=error.code) from error


async def _with_content(case: _Case, judged: Judged, what: Brought) -> Judged:
    """Look at `what` it brings, and fetch the version that it names. Raises `RequestError`."""
    latest, table = case.latest, case.table
    found = excerpt(latest, judged.transaction) if latest else None
    require_fits(judged.transaction, what, found, case.options.create)
    if case.options.verify_files:
        # Merged deletion files are not there yet.
        keys = [key for key in staged_keys(judged.transaction, what, latest) if key not in judged.files]
        if missing := await missing_files(table.store, keys):
            raise missing_file(missing)
    transaction = await with_known_sizes(table.store, judged.transaction, what)
    if transaction is not judged.transaction:
        judged = replace(judged, transaction=transaction)
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
    origin = Table(store)
    await origin.latest_version()
    source = await origin.readable(clone.ref_version)
    _require_base_version(source)
    judged = replace(judged, source=source)
    if clone.is_shallow or source is None:
        return judged
    places = Places(store=store, bases=source.outline.base_paths, open_store=case.world.open_store)
    copies = await copies_of(source, places)
    if case.options.copy_clone:
        return replace(judged, copies=copies)
    if missing := await missing_files(case.table.store, [copy.target for copy in copies]):
        raise missing_file(missing)
    return judged


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
