"""Decides whether the pure work on one record runs on the event loop or through `HeavyWork`.

The event loop also serves probes, Kafka and the store. Work that may take longer than about 50 ms goes through
`HeavyWork`, which in the daemon is a thread. Nothing ends it there: these bounds say how much a record may hold.

    bytes of a transaction               `commit.transaction_bytes_max`
    messages in it                       `lance.format.decoded_size`
    fragments that it names              `lance.transactions.validation`
    numbers, texts, entries              `lance.format.bounds`, `lance.checks`, and the `validate` of the operations
    files, bytes of deletion files       `commit.transaction_files_max`, `commit.named_bytes_max`
    keys that are compared               `lance.conflicts.key_filter.KEYS_MAX`
    rows that are followed               `lance.operations.following.FOLLOWED_ROWS_MAX`
    what is kept of versions             `lance.operations.rebase_footprints.REBASE_BYTES_MAX`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar, assert_never

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.fragment_list import CHUNK_BYTES_MAX
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.operations.operation import Operation, ScalesWith
from committerd.lance.transactions.transaction import known_operation
from committerd_common.messages import Manifest, Transaction

T = TypeVar("T")

LIGHT_BYTES_MAX = 64 * 1024
"""Largest light transaction, in bytes: validating it, computing its footprint and building it take a few ms."""
LIGHT_FRAGMENTS_MAX = 500
"""Maximum number of fragments of a light Append."""
LIGHT_FRAGMENT_BYTES_MAX = 1024
"""Bytes for each fragment of a light Append, on top of `LIGHT_BYTES_MAX`. Inline row ids and versions take far more."""
LIGHT_MANIFEST_BYTES_MAX = 1024 * 1024
"""Maximum bytes of encoded fragments for which an operation that reads them is light: about 10,000 fragments."""
LIGHT_FOLLOWED_MAX = 50_000
"""Maximum of the rows to follow, times the Rewrites that moved them, for a light transaction: 50 ms by row ids."""
LIGHT_COMPARED_MAX = 50_000
"""Maximum of the fragments and keys of ours, times the versions compared with them, for a light one: 10 ms."""
_BLOOM_BYTES_PER_ID = 16
"""Comparing this many bytes of Bloom filters takes as long as looking up a key."""
_ROWS_PER_FRAGMENT = 50
"""Following a row of a fragment takes as long as following this many more rows of the same fragment."""
_ROW_ID_BYTES_PER_ROW = 10
"""Decoding this many bytes of row ids takes as long as following a row."""


class HeavyWork(Protocol):
    """Runs a function that does no I/O."""

    async def __call__(self, call: Callable[[], T], *, size: int) -> T:
        """Run `call`, for a record of `size` bytes, and return its result, or raise its exception."""


async def at_once(call: Callable[[], T], *, size: int) -> T:
    """Call it directly: for commands and tests."""
    return call()


def heavy_size(transaction: Transaction, latest: ManifestFile | None) -> int:
    """The size in bytes of a transaction if building its version on `latest` may take long; 0 if it does not."""
    there = 0 if latest is None else sum(map(len, latest.fragments.bodies()))
    return _size_if_heavy(known_operation(transaction), transaction, there)


def heavy_size_to_judge(transaction: Transaction, latest: ManifestFile | None) -> int:
    """As `heavy_size`, for judging it. That decodes only the chunks of the fragments that it names."""
    operation = known_operation(transaction)
    there = 0
    if latest is not None and operation is not None and operation.scales_with is ScalesWith.TABLE:
        named = len(operation.named_fragments(transaction)) * CHUNK_BYTES_MAX
        there = min(named, sum(map(len, latest.fragments.bodies())))
    return _size_if_heavy(operation, transaction, there)


def _size_if_heavy(operation: Operation | None, transaction: Transaction, there: int) -> int:
    """`there`: the bytes of encoded fragments that an operation which reads them decodes."""
    size = transaction.ByteSize()
    cost = ScalesWith.MESSAGE if operation is None else operation.scales_with
    match cost:
        case ScalesWith.FRAGMENTS:
            fragments = len(transaction.append.fragments)
            is_light = (
                fragments <= LIGHT_FRAGMENTS_MAX and size <= LIGHT_BYTES_MAX + fragments * LIGHT_FRAGMENT_BYTES_MAX
            )
        case ScalesWith.MESSAGE:
            is_light = size <= LIGHT_BYTES_MAX
        case ScalesWith.TABLE:
            is_light = size <= LIGHT_BYTES_MAX and there <= LIGHT_MANIFEST_BYTES_MAX
        case ScalesWith.UNBOUNDED:
            is_light = False
        case _:
            assert_never(cost)
    return 0 if is_light else size


def comparing_size(transaction: Transaction, ours: Footprint, versions: int) -> int:
    """The size in bytes of a transaction if it may take long to compare it with so many versions; 0 if not."""
    keys = ours.key_filter
    weight = len(ours.fragments)
    if keys is not None:
        weight += len(keys.exact or ()) + len(keys.bloom) // _BLOOM_BYTES_PER_ID
    return transaction.ByteSize() if weight * versions > LIGHT_COMPARED_MAX else 0


def following_size(transaction: Transaction, read: Manifest, theirs: Iterable[Footprint]) -> int:
    """The size in bytes of a Delete or Update if it may take long to follow its rows through Rewrites; 0 if not.

    `read`: the excerpt of its read version. `theirs`: the versions since then.
    """
    rewrites = [one for one in theirs if one.kind is Kind.REWRITE]
    change = transaction.delete if transaction.WhichOneof("operation") == "delete" else transaction.update
    staged = {one.id: one.deletion_file.num_deleted_rows for one in change.updated_fragments}
    moved = frozenset().union(*(one.fragments for one in rewrites))
    weight = 0
    for one in read.fragments:
        if one.id in moved:
            deleted = staged.get(one.id) or one.physical_rows  # 0 = not known
            weight += _ROWS_PER_FRAGMENT + max(0, deleted - one.deletion_file.num_deleted_rows)
    weight = weight * len(rewrites) + sum(len(one.moves) for one in rewrites)
    if weight <= LIGHT_FOLLOWED_MAX:
        ids = sum(group.row_id_bytes for one in rewrites for group in one.moves)
        weight += ids // _ROW_ID_BYTES_PER_ROW
    return transaction.ByteSize() if weight > LIGHT_FOLLOWED_MAX else 0
