"""The fragment reuse index: the fragments that compactions replaced without remapping the indices.

Each of its versions is one compaction, with groups of old fragments and of the new fragments that hold their rows.
Small content is inline in the index's details, larger content (Lance: above 204,800 bytes) in a file of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from pyroaring import BitMap64

from committerd.errors import CorruptTable, UnsupportedTable
from committerd.lance.format.bounds import SIZE_MAX, numbers_out_of_bounds
from committerd.lance.format.wording import quoted
from committerd_common.index_details import unpack_details
from committerd_common.messages import DecodeError, FragmentReuseIndexDetails, IndexMetadata
from committerd_common.paths import index_file_key, leaves_its_folder, unstorable
from committerd_common.unknown_fields import unknown_fields

Content = FragmentReuseIndexDetails.InlineContent

FILE_BYTES_MAX = 64 * 2**20
"""The largest content in a file of its own, in bytes. The commits on a table need it."""


class ExternalContent(NamedTuple):
    """The place of the content: a half-open range of bytes of an object in the table's folder."""

    key: str
    start: int
    end: int


def reuse_content(index: IndexMetadata) -> Content | ExternalContent:
    """The content of the index `__lance_frag_reuse`, or the place from which to read it for `decode_content`.

    Raises `UnsupportedTable` with code `fragment_reuse_version` or `fragment_reuse_base`, and `CorruptTable` with code
    `index_details`, also for impossible ids, offsets and sizes, which no reader can follow.
    """
    if index.index_version > 0:
        raise UnsupportedTable(
            f"index {index.name} has version {index.index_version}; committerd knows version 0",
            code="fragment_reuse_version",
        )
    details = unpack_details(index, FragmentReuseIndexDetails)
    match details.WhichOneof("content"):
        case "inline":
            return _known(details.inline)
        case "external":
            return _external(index, details)
        case _:
            raise CorruptTable(f"index {index.name} has no content", code="index_details")


def decode_content(body: bytes, size: int) -> Content:
    """Decode content that is not inline; `size` is the size that the index names. Raises as `reuse_content` does."""
    if len(body) != size:
        raise CorruptTable(
            f"the file of the fragment reuse index ends {size - len(body)} bytes too early", code="index_details"
        )
    try:
        content = Content.FromString(body)
    except DecodeError as error:
        raise CorruptTable(
            f"the file of the fragment reuse index can't be decoded: {error}", code="index_details"
        ) from error
    return _known(content)


def _known(content: Content) -> Content:
    # Lance after 4.0 adds `transitions` to the versions, and a reader must not ignore them.
    unknown = unknown_fields(content)
    if unknown:
        raise UnsupportedTable(
            f"the fragment reuse index has unknown fields: {', '.join(unknown)}",
            code="fragment_reuse_version",
        )
    if wrong := numbers_out_of_bounds(content):
        raise CorruptTable(f"the fragment reuse index has impossible numbers: {wrong[0]}", code="index_details")
    return content


def require_addresses(content: Content) -> None:
    """Check that readers can decode the addresses in staged content, because Lance 4.0.0 panics if it can't.

    Raises `CorruptTable` with code `index_details`.
    """
    for version in content.versions:
        for group in version.groups:
            try:
                BitMap64.deserialize(group.changed_row_addrs)
            except (ValueError, IndexError) as error:
                raise CorruptTable(
                    f"the fragment reuse index has changed_row_addrs that are not a 64-bit Roaring bitmap: {error}",
                    code="index_details",
                ) from error


def _external(index: IndexMetadata, details: FragmentReuseIndexDetails) -> ExternalContent:
    file = details.external
    if index.HasField("base_id"):
        raise UnsupportedTable(
            f"index {index.name} lies in base {index.base_id}, outside the table's folder",
            code="fragment_reuse_base",
        )
    if file.size > FILE_BYTES_MAX or file.offset + file.size > SIZE_MAX:
        raise CorruptTable(
            f"index {index.name} has {file.size} bytes of content at {file.offset}; at most {FILE_BYTES_MAX} are read",
            code="index_details",
        )
    if leaves_its_folder(file.path) or unstorable(file.path):
        raise CorruptTable(
            f"index {index.name} has its content in {quoted(file.path)}, which is not a file of its folder",
            code="index_details",
        )
    return ExternalContent(index_file_key(index.uuid.uuid, file.path), file.offset, file.offset + file.size)
