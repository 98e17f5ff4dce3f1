"""Rebases a transaction onto the versions since its read version, as its operation does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from committerd.errors import CorruptTable, InvalidRequest, UnsupportedTable
from committerd.lance.format.fragment_reuse import Content, require_addresses
from committerd.lance.format.kind import Kind
from committerd.lance.operations.operation import Input
from committerd.lance.operations.rebase import (
    FollowFacts,
    FollowingRebase,
    RebasedTransaction,
    RebaseFacts,
    ReuseContents,
    RowConflict,
)
from committerd.lance.operations.rebase_footprints import REBASE_BYTES_MAX
from committerd.table.case import Case
from committerd.table.heavy_work import following_size
from committerd.table.needs import InThread, Reuse, Steps
from committerd.table.row_groups import deletions_of
from committerd.table.since import Since
from committerd_common.messages import Transaction


def rebased_on(case: Case, since: Since) -> Steps[RebasedTransaction | RowConflict]:
    """Rebase the transaction, which may pass all these versions; a conflict if the rows or files say otherwise."""
    follow, rebase = case.operation.follow, case.operation.rebase
    if follow is not None and since.follows:
        return (yield from _followed(case, since, follow))
    if rebase is None:
        return RebasedTransaction(transaction=case.transaction)
    facts = yield from _facts(case, since)
    yield from case.in_thread()
    return rebase(case.transaction, facts)


def too_much_to_follow(case: Case) -> RowConflict:
    """The conflict of a transaction for whose rebase too much would have to be kept (`Since.kept`)."""
    problem = f"the changes since its read version take more than {REBASE_BYTES_MAX // 2**20} MiB to follow"
    is_index = case.operation.kind is Kind.CREATE_INDEX
    return RowConflict(message=problem, rule="indexed_fragment_rewritten" if is_index else "moved_rows")


def _followed(
    case: Case, since: Since, follow: Callable[[Transaction, FollowFacts], FollowingRebase]
) -> Steps[RebasedTransaction | RowConflict]:
    """Rebase by following rows through Rewrites."""
    latest = case.latest
    assert latest is not None
    assert since.then is not None  # without the read version no rule lets rows be followed
    facts = FollowFacts(
        latest_version=latest.version,
        read=since.then,
        latest=latest.fragments.of,
        theirs=since.kept.parts,
        trusts_all=case.options.trusts_rewrites,
        file_ids=case.sources.file_ids(),
    )
    files = case.deletion_files(None)
    size = case.size or following_size(case.transaction, since.then, since.kept.footprints)
    following = follow(case.transaction, facts)
    rows: Any = None  # what a generator is sent first
    while True:
        if size:
            yield InThread(size)
        try:
            wanted = following.send(rows)
        except StopIteration as end:
            result: RebasedTransaction | RowConflict = end.value
            return result
        rows = yield from files.rows(
            [files.staged(one.fragment) if one.is_staged else files.now(one.fragment) for one in wanted]
        )


def _facts(case: Case, since: Since) -> Steps[RebaseFacts]:
    """The facts that rebasing the transaction needs."""
    latest, operation = case.latest, case.operation
    assert latest is not None
    yield from case.in_thread()
    merges = operation.deletions_to_merge(case.transaction, since.then, case.excerpt(latest))
    deletions = yield from deletions_of(merges, case.deletion_files(since.read))
    reuse = (yield from _reuse_contents(case, since)) if Input.STAGED_REUSE in operation.inputs else None
    return RebaseFacts(
        latest_version=latest.version,
        theirs=since.kept.footprints,
        schema=latest.outline.fields,
        deletions=deletions,
        file_ids=case.sources.file_ids(),
        reuse=reuse,
        index_uuid=case.sources.new_uuid().bytes if reuse is not None else b"",
    )


def staged_reuse(
    transaction: Transaction, written: Mapping[str, bytes] = MappingProxyType({})
) -> Steps[Content | None]:
    """The fragment reuse index that a CreateIndex stages; None when there is none. Raises `InvalidRequest` when it is
    damaged. `written`: bodies of files that a rebase has made for it, by key.
    """
    try:
        content: Content | None = yield Reuse(transaction.create_index.new_indices, written=written, is_staged=True)
        if content is not None:
            require_addresses(content)
    except (CorruptTable, UnsupportedTable) as error:
        raise InvalidRequest(str(error), code=error.code) from error
    return content


def _reuse_contents(case: Case, since: Since) -> Steps[ReuseContents | None]:
    """The fragment reuse index at the read version, as staged, and at the latest version.

    None unless the transaction stages one and a version since its read version has changed it.
    """
    assert case.latest is not None
    ours = yield from staged_reuse(case.transaction)
    if ours is None or not any(theirs.reuse_version is not None for theirs in since.kept.footprints):
        return None
    return ReuseContents(
        ours=ours,
        read=(yield Reuse(since.read.indices if since.read else (), is_old=True)) or Content(),
        latest=(yield Reuse(case.latest.indices)) or Content(),
    )
