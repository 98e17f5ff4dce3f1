"""A version is put only if another one can follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from committerd.errors import InvalidRequest
from committerd.lance.format.bounds import FRAGMENT_ID_MAX
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.transactions.build import build
from committerd.lance.transactions.succession import require_next
from committerd_common.index_details import pack_details
from committerd_common.messages import Field, FragmentReuseIndexDetails, IndexMetadata, IndexSection, Transaction
from tests.lance.samples import GIVEN, column, fragment, index, manifest, reuse_content, reuse_index, table, transaction


def leaf(number: int) -> Field:
    made = column(number)
    made.type = Field.LEAF
    return made


COLUMNS = [leaf(0), leaf(1), leaf(2)]


def reserving(count: int) -> Transaction:
    return transaction(reserve_fragments=Transaction.ReserveFragments(num_fragments=count))


def creating(*new: IndexMetadata) -> Transaction:
    return transaction(create_index=Transaction.CreateIndex(new_indices=new))


def require_next_after(latest: ManifestFile | None, staged: Transaction) -> None:
    """Called as before a version is put."""
    built = build(latest, staged, GIVEN)
    outline, own = built.packed
    made = ManifestFile(
        outline=outline,
        fragments=built.kept.with_added(own),
        index_section=IndexSection(indices=built.indices),
        transaction=staged,
        transaction_bytes=None,
    )
    named = {one.name: one for one in built.indices}
    details = named.get("__lance_frag_reuse")
    reuse = None if details is None else reuse_content(details.index_details.value)
    require_next(latest, made, built, GIVEN, reuse=reuse)


def test_what_leaves_no_id_for_the_next_append_is_refused() -> None:
    staged = transaction(overwrite=Transaction.Overwrite(fragments=[fragment(0)], schema=COLUMNS))
    require_next_after(table(manifest(fragment(0), columns=COLUMNS, max_fragment_id=FRAGMENT_ID_MAX - 2)), staged)
    with pytest.raises(InvalidRequest, match="nothing could be committed after this transaction") as refused:
        require_next_after(table(manifest(fragment(0), columns=COLUMNS, max_fragment_id=FRAGMENT_ID_MAX - 1)), staged)
    assert refused.value.code == "stops_the_table"


def test_a_table_that_takes_nothing_more_is_not_the_records_fault() -> None:
    full = table(manifest(fragment(0), columns=COLUMNS, max_fragment_id=FRAGMENT_ID_MAX))
    require_next_after(full, reserving(0))


def test_a_create_is_tried_out_too() -> None:
    staged = transaction(0, overwrite=Transaction.Overwrite(fragments=[fragment(0)], schema=COLUMNS))
    require_next_after(None, staged)
    built = build(None, staged, GIVEN)
    outline, own = built.packed
    outline.max_fragment_id = FRAGMENT_ID_MAX
    made = replace(table(manifest()), outline=outline, fragments=own, transaction=staged)
    with pytest.raises(InvalidRequest):
        require_next(None, made, built, GIVEN, reuse=None)


def test_an_append_is_not_tried_out() -> None:
    latest = table(manifest(fragment(0), columns=COLUMNS, max_fragment_id=FRAGMENT_ID_MAX - 1))
    require_next_after(latest, transaction(append=Transaction.Append(fragments=[fragment(0)])))


def test_a_reuse_index_that_no_build_can_apply_is_never_put() -> None:
    """Applied to the index on fragment 0, it gives a fragment id that no bitmap can hold."""
    latest = table(manifest(fragment(0), columns=COLUMNS), index(1, fragments=[0]))
    require_next_after(latest, creating(reuse_index(2, ([0], [7]))))
    details = FragmentReuseIndexDetails()
    details.inline.CopyFrom(reuse_content(reuse_index(2, ([0], [7])).index_details.value))
    details.inline.versions[0].groups[0].new_fragments[0].id = 2**32
    impossible = reuse_index(2, ([0], [7]))
    impossible.index_details.CopyFrom(pack_details(details))
    with pytest.raises(Exception):  # noqa: B017  # whatever it is, the committer takes it for the record's
        require_next_after(latest, creating(impossible))


def test_a_table_without_columns_is_tried_out_without_an_append() -> None:
    latest = table(manifest(columns=[], max_fragment_id=FRAGMENT_ID_MAX))
    require_next_after(latest, reserving(0))


def test_what_makes_every_later_version_slow_is_refused() -> None:
    staged = transaction(update_config=Transaction.UpdateConfig())
    for number in range(20_001):
        staged.update_config.config_updates.update_entries.add(key=str(number), value="v")
    with pytest.raises(InvalidRequest) as refused:
        require_next_after(table(manifest(fragment(0), columns=COLUMNS)), staged)
    assert refused.value.code == "metadata_too_large"
