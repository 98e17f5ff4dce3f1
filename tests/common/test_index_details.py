from __future__ import annotations

import pytest
from pyroaring import BitMap, BitMap64

from committerd.errors import CorruptTable, InvalidRequest, UnsupportedTable
from committerd_common.index_details import (
    FRAGMENT_REUSE_INDEX,
    MEM_WAL_INDEX,
    covered_fragments,
    encode_fragments,
    is_system_index,
    is_vector_index,
    pack_details,
    type_name,
    unpack_details,
)
from committerd_common.messages import (
    UUID,
    Any,
    BTreeIndexDetails,
    FragmentReuseIndexDetails,
    IndexMetadata,
    MemWalIndexDetails,
    MergedGeneration,
    VectorIndexDetails,
)
from tests.lance.format.golden_tables import both_writers, manifest_file


def of_type(type_url: str, value: bytes = b"") -> IndexMetadata:
    return IndexMetadata(name="i", index_details=Any(type_url=type_url, value=value))


@both_writers
def test_the_details_of_golden_indices_have_the_types_that_pylance_gave_them(writer: str) -> None:
    (plain,) = manifest_file(writer, "plain", 5).indices
    assert plain.index_details.type_url == pack_details(BTreeIndexDetails()).type_url
    assert type_name(plain) == "BTreeIndexDetails"
    assert not is_vector_index(plain)
    assert not is_system_index(plain)
    assert covered_fragments(plain, staged=False) == BitMap([0, 1])
    by_name = {index.name: index for index in manifest_file(writer, "fragment_reuse", 6).indices}
    reuse = by_name[FRAGMENT_REUSE_INDEX]
    assert is_system_index(reuse)
    assert covered_fragments(reuse, staged=False) == BitMap([2])
    details = unpack_details(reuse, FragmentReuseIndexDetails)
    assert pack_details(details) == reuse.index_details


def test_details_are_packed_and_unpacked() -> None:
    region = MergedGeneration(region_id=UUID(uuid=bytes(16)), generation=3)
    details = MemWalIndexDetails(num_regions=2, merged_generations=[region])
    packed = pack_details(details)
    assert packed.type_url == "/lance.table.MemWalIndexDetails"
    index = IndexMetadata(name=MEM_WAL_INDEX, index_details=packed)
    assert unpack_details(index, MemWalIndexDetails) == details
    assert is_system_index(index)


@pytest.mark.parametrize(
    "type_url",
    [
        "/lance.table.VectorIndexDetails",
        "/lance.index.pb.VectorIndexDetails",
        "type.googleapis.com/lance.table.VectorIndexDetails",
    ],
)
def test_a_type_is_known_by_the_end_of_its_url(type_url: str) -> None:
    index = of_type(type_url)
    assert type_name(index) == "VectorIndexDetails"
    assert is_vector_index(index)
    assert unpack_details(index, VectorIndexDetails) == VectorIndexDetails()


def test_an_index_without_details_has_no_type() -> None:
    assert type_name(IndexMetadata()) == ""
    assert not is_vector_index(IndexMetadata())


@pytest.mark.parametrize(("staged", "error"), [(True, InvalidRequest), (False, CorruptTable)])
@pytest.mark.parametrize(
    ("index", "message"),
    [
        (of_type("/lance.table.BTreeIndexDetails"), "MemWalIndexDetails is needed"),
        (of_type(""), "MemWalIndexDetails is needed"),
        (of_type("/lance.table.MemWalIndexDetails", b"\xff"), "can't be decoded"),
    ],
)
def test_details_that_are_no_such_are_refused(
    index: IndexMetadata, message: str, staged: bool, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"index 'i': .*{message}") as caught:
        unpack_details(index, MemWalIndexDetails, staged=staged)
    assert getattr(caught.value, "code", None) == "index_details"


def test_details_with_unknown_fields_are_read_and_not_written() -> None:
    newer = MemWalIndexDetails(num_regions=2).SerializeToString() + b"\xc2\x0c\x00"
    details = unpack_details(of_type("/x.MemWalIndexDetails", newer), MemWalIndexDetails)
    assert details.num_regions == 2
    with pytest.raises(UnsupportedTable, match="MemWalIndexDetails#200") as caught:
        pack_details(details)
    assert caught.value.code == "index_details_fields"


def test_the_fragments_of_an_index_are_a_bitmap_or_unknown() -> None:
    assert covered_fragments(IndexMetadata(), staged=False) is None
    for fragments in (BitMap(), BitMap([0, 7, 2**32 - 1]), BitMap(range(100_000))):
        index = IndexMetadata(fragment_bitmap=encode_fragments(fragments))
        assert covered_fragments(index, staged=False) == fragments


@pytest.mark.parametrize(("staged", "error"), [(True, InvalidRequest), (False, CorruptTable)])
@pytest.mark.parametrize("bitmap", [b"abc", BitMap64([1]).serialize()])
def test_a_damaged_bitmap_is_refused(bitmap: bytes, staged: bool, error: type[Exception]) -> None:
    index = IndexMetadata(name="i", fragment_bitmap=bitmap)
    with pytest.raises(error, match="index 'i': its fragment bitmap is not a portable") as caught:
        covered_fragments(index, staged=staged)
    assert getattr(caught.value, "code", None) == "index_bitmap"
