from __future__ import annotations

import pytest
from pyroaring import BitMap64

from committerd.errors import CorruptTable, UnsupportedTable
from committerd.lance.format.fragment_reuse import (
    Content,
    ExternalContent,
    decode_content,
    require_addresses,
    reuse_content,
)
from committerd_common.index_details import FRAGMENT_REUSE_INDEX, pack_details
from committerd_common.messages import (
    UUID,
    ExternalFile,
    FragmentReuseIndexDetails,
    IndexMetadata,
)
from tests.lance.format.golden_tables import both_writers, manifest_file

Version = FragmentReuseIndexDetails.Version
ONE_VERSION = Content(versions=[FragmentReuseIndexDetails.Version(dataset_version=4)])
# `transitions` of newer Lance: field 2 of the content.
NEWER = ONE_VERSION.SerializeToString() + b"\x12\x00"


def index(details: FragmentReuseIndexDetails) -> IndexMetadata:
    return IndexMetadata(
        name=FRAGMENT_REUSE_INDEX,
        uuid=UUID(uuid=bytes(range(16))),
        index_details=pack_details(details),
    )


def external(path: str) -> IndexMetadata:
    file = ExternalFile(path=path, offset=5, size=20)
    return index(FragmentReuseIndexDetails(external=file))


@both_writers
def test_a_compaction_of_pylance_tells_what_it_replaced(writer: str) -> None:
    (reuse,) = (
        each for each in manifest_file(writer, "fragment_reuse", 6).indices if each.name == FRAGMENT_REUSE_INDEX
    )
    content = reuse_content(reuse)
    assert isinstance(content, Content)
    (version,) = content.versions
    (group,) = version.groups
    assert [digest.id for digest in group.old_fragments] == [0, 1]
    assert [digest.num_deleted_rows for digest in group.old_fragments] == [1, 0]
    assert [(digest.id, digest.physical_rows) for digest in group.new_fragments] == [(2, 19)]
    survived = BitMap64.deserialize(group.changed_row_addrs)
    second = range(1 << 32, (1 << 32) + 10)
    assert survived == BitMap64([*range(4), *range(5, 10), *second])


def test_large_content_lies_in_a_file_of_the_index() -> None:
    key = "_indices/00010203-0405-0607-0809-0a0b0c0d0e0f/details.binpb"
    assert reuse_content(external("details.binpb")) == ExternalContent(key, 5, 25)
    body = ONE_VERSION.SerializeToString()
    assert decode_content(body, len(body)) == ONE_VERSION
    with pytest.raises(CorruptTable, match="ends 7 bytes too early") as caught:
        decode_content(body, len(body) + 7)
    assert caught.value.code == "index_details"


@pytest.mark.parametrize(("offset", "size"), [(2**63, 1), (0, 2**63), (5, 2**64 - 1), (2**63 - 1, 1), (0, 2**26 + 1)])
def test_content_that_no_file_can_hold_is_corrupt(offset: int, size: int) -> None:
    file = ExternalFile(path="details.binpb", offset=offset, size=size)
    with pytest.raises(CorruptTable, match=f"has {size} bytes of content at {offset}") as caught:
        reuse_content(index(FragmentReuseIndexDetails(external=file)))
    assert caught.value.code == "index_details"


def digest(**numbers: int) -> Content:
    group = FragmentReuseIndexDetails.Group(old_fragments=[FragmentReuseIndexDetails.FragmentDigest(**numbers)])
    return Content(versions=[FragmentReuseIndexDetails.Version(groups=[group])])


@pytest.mark.parametrize(
    "content", [digest(id=2**32), digest(physical_rows=2**32), Content(versions=[Version(dataset_version=2**63)])]
)
def test_numbers_that_no_table_has_are_corrupt(content: Content) -> None:
    with pytest.raises(CorruptTable, match="has impossible numbers: versions") as caught:
        reuse_content(index(FragmentReuseIndexDetails(inline=content)))
    assert caught.value.code == "index_details"


@pytest.mark.parametrize("addresses", [b"", b"\0", b"\xff" * 30])
def test_addresses_that_no_reader_decodes_are_corrupt(addresses: bytes) -> None:
    content = digest(id=1)
    require_addresses(Content())
    content.versions[0].groups[0].changed_row_addrs = BitMap64([1 << 32]).serialize()
    require_addresses(content)
    content.versions[0].groups[0].changed_row_addrs = addresses
    with pytest.raises(CorruptTable, match="not a 64-bit Roaring bitmap") as caught:
        require_addresses(content)
    assert caught.value.code == "index_details"


@pytest.mark.parametrize("path", ["", "../details.binpb", "/etc/details", "a/b", "x" * 256])
def test_content_outside_the_folder_of_the_index_is_refused(path: str) -> None:
    with pytest.raises(CorruptTable, match="not a file of its folder") as caught:
        reuse_content(external(path))
    assert caught.value.code == "index_details"


def test_content_in_another_base_is_refused() -> None:
    elsewhere = external("details.binpb")
    elsewhere.base_id = 0
    with pytest.raises(UnsupportedTable, match="lies in base 0") as caught:
        reuse_content(elsewhere)
    assert caught.value.code == "fragment_reuse_base"


def test_a_newer_version_is_refused_by_its_number() -> None:
    newer = index(FragmentReuseIndexDetails(inline=ONE_VERSION))
    newer.index_version = 1
    with pytest.raises(UnsupportedTable, match="has version 1; committerd knows version 0") as caught:
        reuse_content(newer)
    assert caught.value.code == "fragment_reuse_version"


def test_newer_content_is_refused_inline_and_in_a_file() -> None:
    inline = index(FragmentReuseIndexDetails())
    inline.index_details.value = (
        b"\x0a" + bytes([len(NEWER)]) + NEWER  # the oneof's inline, which is field 1
    )
    with pytest.raises(UnsupportedTable, match="InlineContent#2") as caught:
        reuse_content(inline)
    assert caught.value.code == "fragment_reuse_version"
    with pytest.raises(UnsupportedTable, match="InlineContent#2"):
        decode_content(NEWER, len(NEWER))


def test_content_that_is_none_is_corrupt() -> None:
    with pytest.raises(CorruptTable, match="has no content"):
        reuse_content(index(FragmentReuseIndexDetails()))
    with pytest.raises(CorruptTable, match="can't be decoded") as caught:
        decode_content(b"\xff", 1)
    assert caught.value.code == "index_details"
