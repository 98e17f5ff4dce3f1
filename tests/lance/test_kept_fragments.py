"""Fragments that an operation does not need stay encoded: the version is the same as if all had been decoded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from committerd.lance.format.fragment_list import Chunk, FragmentList
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.transactions.build import build
from committerd.lance.versions import draft
from committerd.lance.versions.invariants import require_sound
from committerd.lance.versions.next_version import NextVersion
from committerd_common.messages import DataFragment, Manifest, Transaction
from tests.lance.samples import GIVEN, after, data_file, fragment, ids, index, manifest, table, transaction, whole

IDS = st.sets(st.integers(0, 30), min_size=3, max_size=12).map(sorted)
RESERVED = 31


def in_chunks(file: ManifestFile, sizes: list[int]) -> ManifestFile:
    """The same version, with its fragments in chunks of this size."""
    made, chunks = list(file.fragments), []
    while made:
        size = min(sizes.pop() if sizes else 1, len(made))
        chunks.append(Chunk(Manifest(fragments=made[:size]).SerializeToString(), size))
        del made[:size]
    return replace(file, fragments=FragmentList(chunks))


def replacing(*old: int, new: int) -> Transaction:
    group = Transaction.Rewrite.RewriteGroup(
        old_fragments=[fragment(one) for one in old], new_fragments=[fragment(new, name="new")]
    )
    return transaction(rewrite=Transaction.Rewrite(groups=[group]))


def changes(present: list[int], free: list[int]) -> list[Transaction]:
    """Operations on some of these fragments; `free` are reserved ids that no fragment has."""
    first, second, last = present[0], present[1], present[-1]
    changed = [fragment(second, deleted=3)]
    file = data_file("replaced", [2])
    return [
        transaction(append=Transaction.Append(fragments=[fragment(0, name="a"), fragment(0, name="b")])),
        transaction(delete=Transaction.Delete(updated_fragments=changed, deleted_fragment_ids=[last])),
        transaction(update=Transaction.Update(updated_fragments=changed, new_fragments=[fragment(0, name="moved")])),
        transaction(
            data_replacement=Transaction.DataReplacement(
                replacements=[Transaction.DataReplacementGroup(fragment_id=last, new_file=file)]
            )
        ),
        *(replacing(first, last, new=one) for one in free[:3]),
        transaction(reserve_fragments=Transaction.ReserveFragments(num_fragments=3)),
        transaction(restore=Transaction.Restore(version=1)),
    ]


def touching_all(current: ManifestFile, staged: Transaction) -> NextVersion:
    """The next version with every fragment of this one decoded."""
    given_ = replace(GIVEN, restored=current)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft, "_has_ascending_ids", lambda current: False)
        built = build(current, staged, given_)
    assert not built.kept.chunks
    return whole(built)


@settings(deadline=None)
@given(IDS, st.lists(st.integers(1, 4), max_size=4), st.data())
def test_however_fragments_lie_in_chunks_the_version_is_the_same(
    present: list[int], sizes: list[int], data: st.DataObject
) -> None:
    made = [DataFragment.FromString(fragment(one).SerializeToString()) for one in present]
    made[2].files.append(data_file("second", [7]))
    made[-1].files[0].fields[:] = [0, 1, 3]
    made[-1].files.append(data_file("third", [2]))
    current = table(manifest(*made, max_fragment_id=RESERVED), index(1, fragments=present))
    free = sorted(set(range(1, RESERVED + 1)) - set(present))
    staged = data.draw(st.sampled_from(changes(present, free)))
    built = build(in_chunks(current, sizes), staged, replace(GIVEN, restored=current))
    require_sound(current, built)
    assert whole(built) == touching_all(current, staged)


def test_a_rewritten_fragment_may_come_to_lie_among_others() -> None:
    current = table(manifest(*(fragment(one) for one in (0, 1, 2, 10, 11)), max_fragment_id=20))
    assert ids(after(current, replacing(0, new=5))) == [1, 2, 5, 10, 11]
    assert ids(after(current, replacing(10, new=4))) == [0, 1, 2, 4, 11]


def test_nothing_is_kept_where_ids_do_not_ascend_or_are_not_counted() -> None:
    append = transaction(append=Transaction.Append(fragments=[fragment(0)]))
    for file in (
        table(manifest(fragment(3), fragment(1))),
        table(manifest(fragment(1), fragment(3), max_fragment_id=2)),
    ):
        assert not build(file, append, GIVEN).kept.chunks
    file = table(manifest(fragment(1), fragment(3)))
    assert build(file, append, GIVEN).kept is file.fragments
    file.outline.ClearField("max_fragment_id")
    assert build(file, append, GIVEN).kept is file.fragments
