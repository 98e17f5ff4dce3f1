"""ReserveFragments: fragment ids that its producer may give to fragments of a later Rewrite.

The commit raises the table's counter of fragment ids, and changes nothing else. The outcome names the first id and the
number of ids (`queue.grouping.member_of`). An id that no Rewrite uses stays unused.
"""

from __future__ import annotations

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.format.kind import Kind
from committerd.lance.operations.operation import Operation, ScalesWith
from committerd.lance.versions.draft import Draft, finish
from committerd_common.messages import Manifest, Transaction


def _footprint(transaction: Transaction, *, staged: bool) -> Footprint:
    return Footprint(kind=Kind.RESERVE_FRAGMENTS)


def _build(draft: Draft, transaction: Transaction) -> None:
    """Lance: transaction.rs, build_manifest, ReserveFragments."""
    draft.reserve_ids(draft.manifest.max_fragment_id + transaction.reserve_fragments.num_fragments)
    finish(draft)


def _reserved(transaction: Transaction, latest: Manifest) -> tuple[int, int]:
    """pylance 4.0.0: a missing `max_fragment_id` counts as 0, so id 0 is never reserved."""
    return latest.max_fragment_id + 1, transaction.reserve_fragments.num_fragments


RESERVE_FRAGMENTS = Operation(
    kind=Kind.RESERVE_FRAGMENTS,
    scales_with=ScalesWith.MESSAGE,
    footprint=_footprint,
    build=_build,
    reserved=_reserved,
)
