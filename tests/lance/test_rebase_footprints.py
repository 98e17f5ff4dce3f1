"""What is kept of the versions since a read version: enough to rebase, and never more than a bound."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.conflicts.key_filter import KEYS_MAX, KeyFilter
from committerd.lance.format.kind import Kind
from committerd.lance.operations.rebase import RebaseFacts
from committerd.lance.operations.rebase_footprints import (
    REBASE_BYTES_MAX,
    CoverageFootprints,
    RebaseFootprints,
    RowFootprints,
)
from committerd.lance.transactions.transaction import footprint, footprint_of_ours, operation_of
from tests.lance.operations import create_index, delete, merged, moved, replacement, rewrite, update
from tests.lance.samples import fragment, index, manifest, mem_wal_index

OURS = (delete(fragment(0, deleted=1)), update(fragment(0, deleted=1)), create_index(index(1, fragments=[0])))


def kept_by(ours: object) -> RebaseFootprints:
    return operation_of(ours).rebase_footprints(footprint_of_ours(ours, manifest(fragment(0))))  # type: ignore[arg-type]


def upsert(keys: KeyFilter, version: int) -> Footprint:
    return replace(footprint(update(fragment(0, deleted=version)), staged=False), key_filter=keys)


@pytest.mark.parametrize("ours", OURS, ids=lambda one: one.WhichOneof("operation"))
def test_a_thousand_upserts_of_many_keys_leave_nothing(ours: object) -> None:
    keys = KeyFilter(field_ids=(0,), exact=frozenset(range(KEYS_MAX)))
    kept = kept_by(ours)
    for version in range(2, 1002):
        kept.add(version, upsert(keys, version))
    assert (kept.parts, kept.bytes, kept.is_too_much) == ([], 0, False)


@pytest.mark.parametrize("ours", OURS, ids=lambda one: one.WhichOneof("operation"))
def test_rewrites_of_other_fragments_leave_nothing(ours: object) -> None:
    kept = kept_by(ours)
    kept.add(2, footprint(rewrite(5, 6), staged=False))
    assert kept.parts == []


def test_nothing_is_kept_for_what_needs_nothing() -> None:
    kept = kept_by(rewrite(0))
    kept.add(2, footprint(rewrite(0), staged=False))
    assert (kept.parts, kept.footprints) == ([], [])


@pytest.mark.parametrize("make", [RowFootprints, CoverageFootprints])
def test_more_than_the_bound_is_not_kept(make: type[RowFootprints | CoverageFootprints]) -> None:
    ours = footprint_of_ours(OURS[2] if make is CoverageFootprints else OURS[0], manifest(fragment(0)))
    kept = make(ours, 100_000)
    for version in range(100_000):
        kept.add(version, moved(version, version + 1))
        assert kept.bytes <= 100_000
        if kept.is_too_much:
            break
    kept.add(version + 1, moved(version + 1, version + 2))
    assert (kept.is_too_much, kept.parts) == (True, [])
    assert make(ours).bytes_max == REBASE_BYTES_MAX


def test_the_first_change_of_columns_where_rows_went_is_kept() -> None:
    kept = kept_by(OURS[0])
    kept.add(2, moved(0, 9))
    deleted = footprint(delete(fragment(9, name="new", deleted=3)), staged=False)
    kept.add(3, deleted)
    kept.add(4, footprint(delete(removed=(9,)), staged=False))
    assert [version for version, _ in kept.parts] == [2]
    for version in (5, 6):
        kept.add(version, footprint(replacement(9, 1), staged=False))
    assert [(version, part.kind, part.fragments) for version, part in kept.parts[1:]] == [
        (5, Kind.DATA_REPLACEMENT, frozenset({9}))
    ]


def test_columns_rewritten_again_and_again_are_kept_once() -> None:
    kept = kept_by(create_index(index(1, fragments=[0, 1, 2])))
    for version, number in enumerate((0, 1, 0, 7, 1), start=2):
        kept.add(version, footprint(update(fragment(number, name="in place"), fields_modified=[1]), staged=False))
        kept.add(version, footprint(replacement(number, 1), staged=False))
    assert [(version, [*part.files], part.fields_modified) for version, part in kept.parts] == [
        (2, [0], frozenset({1})),
        (3, [1], frozenset({1})),
    ]


def test_merges_of_the_mem_wal_are_kept_for_its_index() -> None:
    kept = kept_by(create_index(mem_wal_index(1)))
    kept.add(2, footprint(merged((1, 3)), staged=False))
    assert [part.generations for part in kept.footprints] == [footprint(merged((1, 3)), staged=False).generations]


def test_reuse_entries_are_kept_wherever_they_are() -> None:
    kept = kept_by(create_index(index(1, fragments=None)))
    kept.add(2, footprint(rewrite(5), staged=False))
    kept.add(3, replace(footprint(rewrite(5), staged=False), reuse_version=2))
    assert [(version, part.reuse_version, part.moves) for version, part in kept.parts] == [(3, 2, ())]


def test_random_histories_rebase_an_index_as_all_that_happened_does() -> None:
    """An index, while fragments are rewritten alone, together and in place."""
    random = Random(1)
    differing = 0
    for _ in range(500):
        alive, new, stable = list(range(6)), 10, random.random() < 0.5
        staged = create_index(index(1, fragments=random.sample(alive, random.randint(1, 4))))
        theirs: list[Footprint] = []
        for _ in range(random.randint(1, 8)):
            some = random.sample(alive, random.randint(1, min(3, len(alive))))
            if random.random() < 0.6:
                made = rewrite(*some)
                made.rewrite.groups[0].new_fragments[0].id = new
                touched = footprint(made, staged=False)
                if stable:
                    touched = replace(
                        touched, moves=tuple(replace(one, old_row_ids={some[0]: b"x"}) for one in touched.moves)
                    )
                alive = [one for one in alive if one not in some] + [new]
                new += 1
            elif random.random() < 0.3:
                touched = footprint(replacement(some[0], random.choice([0, 1])), staged=False)
            else:
                changed = update(
                    *(fragment(one, name="in place") for one in some), fields_modified=[random.choice([0, 1])]
                )
                touched = footprint(changed, staged=False)
            theirs.append(touched)
        operation = operation_of(staged)
        kept = operation.rebase_footprints(footprint_of_ours(staged, None))
        for version, one in enumerate(theirs):
            kept.add(version, one)
        assert operation.rebase is not None
        all_of_it, part_of_it = (
            operation.rebase(staged, RebaseFacts(latest_version=7, theirs=known, file_ids=iter(())))
            for known in (theirs, kept.footprints)
        )
        assert all_of_it == part_of_it
        differing += len(kept.parts) < len(theirs)
    assert differing > 100
