"""The versions of a branch, and the transactions that made them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from committerd.branches.reference import Branch, parse_reference, reference_key
from committerd.branches.refusal import PromotionRefused
from committerd.concurrency import map_each
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.support import require_supported
from committerd.lance.transactions.transaction import known_operation
from committerd.stores.port import ObjectStore
from committerd.table.versions import Table
from committerd_common.messages import Transaction

_AT_ONCE = 16
_PROMOTED = frozenset(
    {
        Kind.APPEND,
        Kind.DELETE,
        Kind.UPDATE,
        Kind.REWRITE,
        Kind.MERGE,
        Kind.PROJECT,
        Kind.CREATE_INDEX,
        Kind.UPDATE_CONFIG,
        Kind.DATA_REPLACEMENT,
        Kind.RESERVE_FRAGMENTS,
    }
)
"""The operations that can be brought to main. Each of the others replaces the table, or names other folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One transaction of a branch."""

    version: int
    """The version of the branch that it made."""
    kind: Kind
    transaction: Transaction


async def find_branch(store: ObjectStore, name: str) -> Branch:
    """The branch of this name. Raises `PromotionRefused` (`no_such_branch`, `branch_of_branch`) and `CorruptTable`."""
    body = await store.get(reference_key(name))
    if body is None:
        raise PromotionRefused(
            f"{store.uri} has no branch {name!r} ({reference_key(name)} is not there)", code="no_such_branch"
        )
    branch = parse_reference(name, body)
    if branch.parent is not None:
        raise PromotionRefused(
            f"branch {name!r} left branch {branch.parent!r}, not main; only a branch that left main can be promoted "
            "into it, because main does not have the rows that this branch began with",
            code="branch_of_branch",
        )
    return branch


async def read_version(table: Table, branch: Branch, version: int) -> ManifestFile:
    """One version of a branch. Raises `PromotionRefused` (`branch_cleaned_up`, `branch_replaced`)."""
    file = await table.readable(version)
    if file is None:
        raise PromotionRefused(
            f"version {version} of branch {branch.name!r} is gone or damaged, and with it what its transactions say. "
            "Was the branch cleaned up? Its rows can still be copied to main with any writer",
            code="branch_cleaned_up",
        )
    require_supported(file)
    if file.outline.branch != branch.name:
        raise PromotionRefused(
            f"version {version} in {table.uri} is of branch {file.outline.branch or 'main'!r}, not {branch.name!r}; "
            "was the folder copied or moved?",
            code="branch_replaced",
        )
    return file


async def steps_after(
    table: Table, branch: Branch, after: int, upto: int, *, progress: Callable[[int, int], None]
) -> Sequence[Step]:
    """The transactions of the branch above version `after`, in order.

    `progress`: is told how many of how many are read. Raises `PromotionRefused`: `branch_cleaned_up` if one can't be
    read, `branch_replaced` if the branch was restored or overwritten, `unsupported_operation` for one that can't be
    brought to another branch.
    """
    steps = list[Step]()
    for low in range(after, upto, _AT_ONCE):
        numbers = range(low + 1, min(low + _AT_ONCE, upto) + 1)
        steps += await map_each(numbers, lambda number: _step(table, branch, number), at_once=_AT_ONCE)
        progress(len(steps), upto - after)
    return steps


async def _step(table: Table, branch: Branch, version: int) -> Step:
    transaction = await table.transaction(await read_version(table, branch, version))
    if transaction is None:
        raise PromotionRefused(
            f"the transaction of version {version} of branch {branch.name!r} can't be read: its file is gone or "
            "damaged. Was the branch cleaned up?",
            code="branch_cleaned_up",
        )
    operation = known_operation(transaction)
    if operation is None:
        raise PromotionRefused(
            f"version {version} of branch {branch.name!r} is by an operation that committerd does not know",
            code="unsupported_operation",
        )
    if operation.kind in (Kind.OVERWRITE, Kind.RESTORE):
        raise PromotionRefused(
            f"branch {branch.name!r} was replaced by {operation.kind} at version {version}: from there on it has no "
            "history in common with main. Read the branch, and overwrite main with its rows, if you mean that",
            code="branch_replaced",
        )
    if operation.kind not in _PROMOTED:
        raise PromotionRefused(
            f"version {version} of branch {branch.name!r} is by {operation.kind}, which can't be brought to main",
            code="unsupported_operation",
        )
    return Step(version=version, kind=operation.kind, transaction=operation.normalised(transaction))
