"""The comparison of a transaction with the versions that were committed since its read version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from committerd.errors import CorruptTable
from committerd.lance.conflicts.footprint import AN_APPEND, Footprint
from committerd.lance.conflicts.grid import (
    FOLLOWING,
    NOTHING_FOUND,
    Comparison,
    Verdict,
    VersionVerdict,
    compared,
    passes_all,
)
from committerd.lance.conflicts.rules import not_followed
from committerd.lance.conflicts.union import COMPARED_WITH_UNIONS
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.operations.operation import Input
from committerd.lance.operations.rebase_footprints import RebaseFootprints
from committerd.lance.transactions.transaction import footprint_of_ours
from committerd.table.case import Case
from committerd.table.heavy_work import comparing_size
from committerd.table.needs import Checkpoint, InThread, OneVersion, Steps, Versions
from committerd.table.versions import UNITED_VERSIONS, Committed, Gap
from committerd_common.messages import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """The comparison of a transaction with the versions since its read version."""

    ours: Footprint = AN_APPEND
    read: ManifestFile | None = None
    """The read version; None when it is unreadable, or the operation doesn't need it."""
    then: Manifest | None = None
    """The excerpt of the read version."""
    kept: RebaseFootprints
    """What was kept of the versions since then, to rebase the transaction."""
    found: Comparison
    unfollowed: str = ""
    """Why rows can't be followed through the version that decides; empty if that is not the reason."""

    @property
    def refuses(self) -> VersionVerdict | None:
        """The version that the transaction can't pass; None if it can pass all."""
        deciding = self.found.deciding
        return deciding if deciding is not None and deciding.verdict >= Verdict.RETRYABLE else None

    @property
    def follows(self) -> bool:
        """Whether rows must be followed through a Rewrite."""
        return any(one.rule in FOLLOWING for one in self.found.conflicts)


def since_read(case: Case) -> Steps[Since | Gap | None]:
    """Compare the transaction with the versions committed since its read version; None when there are none.

    Returns the first version that can't be read instead, if there is one.
    """
    latest, after = case.latest, case.transaction.read_version
    if latest is None or after in (0, latest.version):
        return None
    if case.operation.kind is Kind.APPEND:
        # All Appends with the same read version compare alike.
        found = case.history.compared_appends(after)
        since = Since(kept=RebaseFootprints(), found=found)
        return (yield from _compared(case, since, max(found.through, after), latest.version))
    read = (yield OneVersion(after)) if Input.READ_VERSION in case.operation.inputs else None
    yield from case.in_thread()
    read, then, ours = _footprint(case, read)
    if case.options.trusts_rewrites:
        ours = replace(ours, trusts_rewrites=True)
    since = Since(ours=ours, read=read, then=then, kept=case.operation.rebase_footprints(ours), found=NOTHING_FOUND)
    return (yield from _compared(case, since, after, latest.version))


def _compared(case: Case, since: Since, after: int, latest: int) -> Steps[Since | Gap]:
    """Go on with the versions above `after`, a few at a time: each is compared and dropped.

    A transaction that passes the union of the next `UNITED_VERSIONS` versions is not compared with each of them.
    """
    low, largest, last = after, 0, None
    while low < latest:
        # The step before may have run in a thread, where the caches of the table must not be changed.
        yield Checkpoint()
        if (yield from _passes_union(case, since, low, latest)):
            low += UNITED_VERSIONS
            continue
        some: Sequence[Committed] | Gap = case.history.formed_after(low)
        if not some:
            upto = min(latest, case.history.created, low - low % UNITED_VERSIONS + UNITED_VERSIONS)
            some = yield Versions(low, upto, largest)
        if isinstance(some, Gap):
            return some
        if size := comparing_size(case.transaction, since.ours, len(some)):
            yield InThread(size)
        since = _compare(case, since, some)
        last = some[-1]
        low, largest = last.version, max(largest, *(one.bytes for one in some))
    if since.ours is AN_APPEND and last is not None:
        case.history.note_compared_appends(case.transaction.read_version, since.found, last)
    return since if since.found.through == low else replace(since, found=replace(since.found, through=low))


def _passes_union(case: Case, since: Since, low: int, latest: int) -> Steps[bool]:
    """Whether the transaction passes the next `UNITED_VERSIONS` versions, and nothing of them is needed to rebase it.

    Also False if there is no union. After a Rewrite that moved its rows, a rebase needs the later changes of the
    fragments to which they have moved.
    """
    ours = since.ours
    if ours.kind not in COMPARED_WITH_UNIONS or case.options.lists_checked or since.kept.parts:
        return False
    united = case.history.union_after(low, latest)
    if united is None:
        return False
    if size := comparing_size(case.transaction, ours, len(united)):
        yield InThread(size)
    return passes_all(ours, united)


def _compare(case: Case, since: Since, some: Sequence[Committed]) -> Since:
    """Compare with a few more versions, and keep what a rebase needs of them."""
    before, kept = since.found.deciding, since.kept
    versions = [(one.version, one.footprint) for one in some]
    found = compared(since.ours, versions, since.found, lists_all=case.options.lists_checked)
    since = replace(since, found=found)
    if since.refuses is not None:
        kept.drop()
        return since if found.deciding is before else replace(since, unfollowed=_unfollowed(since, some))
    for one in some:
        if isinstance(one.footprint, Footprint) and one.footprint.kind is not Kind.APPEND:
            kept.add(one.version, one.footprint)
    return since


def _unfollowed(since: Since, some: Sequence[Committed]) -> str:
    deciding = since.refuses
    if deciding is None or deciding.rule not in FOLLOWING:
        return ""
    theirs = next(one.footprint for one in some if one.version == deciding.version)
    return not_followed(since.ours, theirs) if isinstance(theirs, Footprint) else ""


def _footprint(case: Case, read: ManifestFile | None) -> tuple[ManifestFile | None, Manifest | None, Footprint]:
    """Return the read version, its excerpt, and the transaction's footprint."""
    then = case.excerpt(read) if read else None
    try:
        return read, then, footprint_of_ours(case.transaction, then, read.indices if read else ())
    except CorruptTable:
        # An old version is damaged: treat it as unreadable.
        return None, None, footprint_of_ours(case.transaction, None)
