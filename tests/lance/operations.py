"""Short constructors for one operation of each kind, and the verdict of the grid on two of them."""

from __future__ import annotations

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.conflicts.grid import Verdict, check
from committerd.lance.transactions.transaction import footprint, footprint_of_ours, footprint_of_theirs
from committerd_common.messages import DataFragment, Field, IndexMetadata, Manifest, Transaction
from tests.lance import samples
from tests.lance.samples import fragment, generation, transaction

C, B, R, I = Verdict.COMPATIBLE, Verdict.REBASABLE, Verdict.RETRYABLE, Verdict.INCOMPATIBLE

READ = samples.manifest(fragment(0), fragment(1))


def verdict(
    ours: Transaction | Footprint,
    theirs: Transaction | Footprint,
    *,
    read: Manifest | None = READ,
    read_indices: tuple[IndexMetadata, ...] = (),
    writer: str = "14.0.2",
    indices: tuple[IndexMetadata, ...] = (),
) -> Verdict:
    after = samples.manifest(version=6, writer=("lance", writer))
    if isinstance(ours, Transaction):
        ours = footprint_of_ours(ours, read, read_indices)
    if isinstance(theirs, Transaction):
        theirs = footprint_of_theirs(theirs, before=READ, after=after, indices=indices)
    return check(ours, 6, theirs).verdict


def delete(*updated: DataFragment, removed: tuple[int, ...] = ()) -> Transaction:
    return transaction(delete=Transaction.Delete(updated_fragments=updated, deleted_fragment_ids=removed))


def update(*updated: DataFragment, **other: object) -> Transaction:
    return transaction(update=Transaction.Update(updated_fragments=updated, **other))  # type: ignore[arg-type]


def create_index(*new: IndexMetadata, removed: tuple[IndexMetadata, ...] = ()) -> Transaction:
    return transaction(create_index=Transaction.CreateIndex(new_indices=new, removed_indices=removed))


def rewrite(*old: int, rewritten: tuple[int, ...] = (), properties: dict[str, str] | None = None) -> Transaction:
    group = Transaction.Rewrite.RewriteGroup(
        old_fragments=[fragment(one) for one in old], new_fragments=[fragment(9, name="new")]
    )
    changed = [
        Transaction.Rewrite.RewrittenIndex(old_id=samples.uuid_of(one), new_id=samples.uuid_of(one + 100))
        for one in rewritten
    ]
    made = Transaction.Rewrite(groups=[group], rewritten_indices=changed)
    return transaction(rewrite=made, transaction_properties=properties or {})


def moved(old: int, new: int) -> Footprint:
    """What a Rewrite touches that has moved the rows of one fragment to a new fragment."""
    made = rewrite(old)
    made.rewrite.groups[0].new_fragments[0].id = new
    return footprint(made, staged=False)


def replacement(number: int, *fields: int) -> Transaction:
    group = Transaction.DataReplacementGroup(fragment_id=number, new_file=samples.data_file("new", fields))
    return transaction(data_replacement=Transaction.DataReplacement(replacements=[group]))


def append() -> Transaction:
    return transaction(append=Transaction.Append(fragments=[fragment(0, name="new")]))


def project(*columns: Field, preserves: bool = False) -> Transaction:
    return transaction(project=Transaction.Project(schema=columns, preserves_nullability=preserves))


def merge(*columns: Field) -> Transaction:
    return transaction(merge=Transaction.Merge(schema=columns))


def merged(*generations: tuple[int, int]) -> Transaction:
    state = Transaction.UpdateMemWalState(merged_generations=[generation(*one) for one in generations])
    return transaction(update_mem_wal_state=state)


def config(**updates: object) -> Transaction:
    return transaction(update_config=Transaction.UpdateConfig(**updates))  # type: ignore[arg-type]


DELETES_OF_0 = delete(fragment(0, deleted=1))
