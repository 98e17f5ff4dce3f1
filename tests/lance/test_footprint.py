"""Footprints, and the old forms of messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from committerd.errors import CorruptTable, InvalidRequest
from committerd.lance.conflicts.footprint import AN_APPEND, BaseFootprint, Footprint, IndexFootprint, size_of
from committerd.lance.conflicts.key_filter import (
    NUMBER_OF_ITEMS_DEFAULT,
    PROBABILITY_DEFAULT,
    KeyFilter,
    KeyHashes,
    key_filter,
)
from committerd.lance.format.kind import Kind
from committerd.lance.transactions.transaction import footprint, footprint_of_ours, normalised
from committerd_common.messages import Transaction
from tests.lance import samples
from tests.lance.operations import delete
from tests.lance.samples import fragment, index, transaction


@pytest.mark.parametrize("kind", Kind)
def test_the_kind_is_the_operation(kind: Kind) -> None:
    staged = transaction()
    getattr(staged, kind).SetInParent()
    assert footprint(staged, staged=True).kind is kind
    assert footprint_of_ours(staged, samples.manifest()).kind is kind


@pytest.mark.parametrize(
    ("small", "large", "more_bytes"),
    [
        (AN_APPEND, replace(AN_APPEND, fragments=frozenset(range(1000))), 1000 * 50),
        (AN_APPEND, replace(AN_APPEND, groups=(frozenset(range(1000)),)), 1000 * 50),
        (AN_APPEND, replace(AN_APPEND, replaced={1: frozenset(range(1000))}), 1000 * 50),
        (AN_APPEND, replace(AN_APPEND, config_upserts=frozenset({"x" * 1000})), 1000),
        (AN_APPEND, replace(AN_APPEND, bases=(BaseFootprint(id=1, name="n" * 500, path="p" * 500),)), 1000),
        (
            AN_APPEND,
            replace(AN_APPEND, new_indices=(IndexFootprint(name="i", fields=frozenset(range(1000))),)),
            1000 * 50,
        ),
        (AN_APPEND, replace(AN_APPEND, removed_indices=(IndexFootprint(name="i", fragments=None),)), 100),
        (
            footprint(delete(fragment(0)), staged=False),
            footprint(delete(fragment(0, name="f" * 1000)), staged=False),
            990,
        ),
        (AN_APPEND, replace(AN_APPEND, key_filter=KeyFilter(field_ids=(0,), exact=KeyHashes(range(1000)))), 1000 * 8),
        (AN_APPEND, replace(AN_APPEND, key_filter=KeyFilter(field_ids=(0,), exact=None, bloom=bytes(1000))), 1000),
    ],
    ids=range(10),
)
def test_its_memory_is_estimated_from_all_that_it_holds(small: Footprint, large: Footprint, more_bytes: int) -> None:
    assert size_of(AN_APPEND) == 0
    assert more_bytes <= size_of(large) - size_of(small) <= 3 * more_bytes + 1000


def test_an_operation_that_we_do_not_know() -> None:
    with pytest.raises(InvalidRequest, match="no operation"):
        footprint(transaction(), staged=True)


def test_fragments_files_and_removals() -> None:
    made = footprint(delete(fragment(3, deleted=1), removed=(5,)), staged=True)
    assert made.fragments == {3, 5}
    assert made.removed == {5}
    assert made.files == {3: (("f3.lance", (0, 1, 2), (0, 1, 2), 2, 0, None),)}


def test_a_file_in_a_base_is_another_file() -> None:
    far = fragment(3)
    far.files[0].base_id = 0
    assert footprint(delete(far), staged=True).files != footprint(delete(fragment(3)), staged=True).files


@pytest.mark.parametrize(("staged", "error"), [(True, InvalidRequest), (False, CorruptTable)])
def test_an_index_that_can_not_be_decoded(staged: bool, error: type[Exception]) -> None:
    for broken in (index(1), samples.mem_wal_index(1)):
        broken.fragment_bitmap = b"nonsense" if broken.name == "i1" else b""
        broken.index_details.value = b"\xff"
        create = Transaction.CreateIndex(new_indices=[broken])
        with pytest.raises(error):
            footprint(transaction(create_index=create), staged=staged)


class TestOlderForms:
    def test_of_update_config(self) -> None:
        old = Transaction.UpdateConfig(
            upsert_values={"a": "1"},
            delete_keys=["b"],
            schema_metadata={"s": "2"},
            field_metadata={7: Transaction.UpdateConfig.FieldMetadataUpdate(metadata={"f": "3"})},
        )
        new = Transaction.UpdateConfig(
            config_updates=samples.updates({"a": "1", "b": None}),
            schema_metadata_updates=samples.updates({"s": "2"}, replace=True),
            field_metadata_updates={7: samples.updates({"f": "3"}, replace=True)},
        )
        staged = transaction(update_config=old)
        assert normalised(staged) == transaction(update_config=new)
        assert staged.update_config == old
        made = footprint(staged, staged=True)
        assert made.config_upserts == {"a"}
        assert made.config_deletes == {"b"}
        assert made.metadata_fields == {7}

    def test_of_update_config_with_one_map(self) -> None:
        old = Transaction.UpdateConfig(schema_metadata={"s": "2"})
        new = normalised(transaction(update_config=old)).update_config
        assert not new.HasField("config_updates")
        only = normalised(transaction(update_config=Transaction.UpdateConfig(delete_keys=["b"]))).update_config
        assert not only.HasField("schema_metadata_updates")

    def test_of_update_config_beside_the_new_one(self) -> None:
        for new in (
            {"config_updates": samples.updates({})},
            {"table_metadata_updates": samples.updates({})},
            {"schema_metadata_updates": samples.updates({})},
            {"field_metadata_updates": {1: samples.updates({})}},
        ):
            both = Transaction.UpdateConfig(upsert_values={"a": "1"}, **new)
            with pytest.raises(InvalidRequest, match="both") as error:
                normalised(transaction(update_config=both))
            assert error.value.code == "mixed_update_config"

    def test_of_update_config_of_a_field_that_no_table_can_have(self) -> None:
        old = Transaction.UpdateConfig(field_metadata={2**31: Transaction.UpdateConfig.FieldMetadataUpdate()})
        with pytest.raises(InvalidRequest, match="names field 2147483648") as error:
            normalised(transaction(update_config=old))
        assert error.value.code == "unknown_field"

    def test_of_rewrite(self) -> None:
        old = Transaction.Rewrite(old_fragments=[fragment(1), fragment(2)], new_fragments=[fragment(9)])
        made = normalised(transaction(rewrite=old)).rewrite
        assert [[one.id for one in group.old_fragments] for group in made.groups] == [[1, 2]]
        assert [one.id for one in made.groups[0].new_fragments] == [9]
        assert not made.old_fragments
        assert not made.new_fragments
        assert footprint(transaction(rewrite=old), staged=True).fragments == {1, 2}

    def test_only_new_fragments_are_a_group_too(self) -> None:
        old = Transaction.Rewrite(new_fragments=[fragment(9)])
        assert len(normalised(transaction(rewrite=old)).rewrite.groups) == 1

    def test_what_is_in_its_present_form_is_not_copied(self) -> None:
        for staged in (
            transaction(append=Transaction.Append()),
            transaction(update_config=Transaction.UpdateConfig()),
            transaction(rewrite=Transaction.Rewrite()),
            transaction(rewrite=Transaction.Rewrite(groups=[Transaction.Rewrite.RewriteGroup()])),
        ):
            assert normalised(staged) is staged


def exact(*hashes: int) -> KeyFilter:
    return KeyFilter(field_ids=(0,), exact=KeyHashes(hashes))


def bloom(bits: bytes, **other: object) -> KeyFilter:
    return KeyFilter(field_ids=(0,), bloom=bits, **other)  # type: ignore[arg-type]


class TestKeyFilter:
    def test_hashes_are_a_set(self) -> None:
        hashes = KeyHashes([3, 1])
        assert hashes == KeyHashes([1, 3])
        assert (3 in hashes, 2 in hashes, 4 in hashes, {*hashes}) == (True, False, False, {1, 3})
        assert 1 not in KeyHashes()
        no_hash: object = "3"
        assert no_hash not in hashes

    @given(st.frozensets(st.integers(0, 60), max_size=3), st.frozensets(st.integers(0, 60), max_size=60))
    def test_hashes_are_disjoint_whether_many_or_few(self, few: frozenset[int], many: frozenset[int]) -> None:
        wanted = few.isdisjoint(many)
        assert KeyHashes(few).isdisjoint(KeyHashes(many)) is wanted
        assert KeyHashes(many).isdisjoint(KeyHashes(few)) is wanted
        assert KeyHashes(few).isdisjoint(many) is wanted

    def test_exact_sets_share_what_is_in_both(self) -> None:
        assert exact(1, 2).may_share_a_key(exact(2, 3))
        assert not exact(1).may_share_a_key(exact(2))
        assert not exact().may_share_a_key(exact())

    def test_a_set_is_never_looked_up_in_a_bloom_filter(self) -> None:
        assert exact(1).may_share_a_key(bloom(b"\0"))
        assert bloom(b"\0").may_share_a_key(exact(1))

    def test_bloom_filters_share_a_bit(self) -> None:
        assert bloom(b"\x01\x80").may_share_a_key(bloom(b"\x00\x80"))
        assert not bloom(b"\x01\x7f").may_share_a_key(bloom(b"\x02\x80"))

    @pytest.mark.parametrize("other", [bloom(b"\0\0"), bloom(b"\0", number_of_items=7), bloom(b"\0", probability=0.1)])
    def test_bloom_filters_of_other_shapes_can_not_be_compared(self, other: KeyFilter) -> None:
        assert bloom(b"\0").may_share_a_key(other)

    def test_keys_of_other_columns_can_not_be_compared(self) -> None:
        assert exact(1).may_share_a_key(KeyFilter(field_ids=(1,), exact=frozenset({2})))

    def test_what_is_not_set_has_a_default(self) -> None:
        empty = Transaction.KeyExistenceFilter(field_ids=[0])
        assert key_filter(empty) == exact()
        unset = Transaction.KeyExistenceFilter(field_ids=[0], bloom=Transaction.BloomFilter(bitmap=b"x"))
        assert key_filter(unset) == bloom(
            b"x", number_of_items=NUMBER_OF_ITEMS_DEFAULT, probability=PROBABILITY_DEFAULT
        )

    @given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
    def test_it_never_denies_a_shared_key(self, one: set[int], other: set[int]) -> None:
        assert (
            exact(*one).may_share_a_key(exact(*other))
            == exact(*other).may_share_a_key(exact(*one))
            == bool(one & other)
        )
