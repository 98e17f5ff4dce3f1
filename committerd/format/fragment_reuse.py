"""The fragment reuse index: what compactions replaced while they left the indices alone.

Each of its versions is one compaction, with groups of old fragments and the new ones that hold
their rows. Small content is inline in the index's details, larger content (Lance: above 204,800
bytes) in a file of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from committerd.errors import CorruptTable, UnsupportedTable
from committerd.format.index_details import unpack_details
from committerd.format.messages import DecodeError, FragmentReuseIndexDetails, IndexMetadata
from committerd.format.paths import index_prefix
from committerd.format.unknown_fields import unknown_fields

Content = FragmentReuseIndexDetails.InlineContent


class ExternalContent(NamedTuple):
    """Where the content lies: half-open range of bytes of an object in the table's folder."""

    key: str
    start: int
    end: int


def reuse_content(index: IndexMetadata) -> Content | ExternalContent:
    """What `__lance_frag_reuse` says, or where that is to be read for `decode_content`.

    Raises `UnsupportedTable` with code `fragment_reuse_version` or `fragment_reuse_base`, and
    `CorruptTable` with code `index_details`.
    """
    if index.index_version > 0:
        raise UnsupportedTable(
            f"index {index.name} has version {index.index_version}; we know version 0",
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


def decode_content(body: bytes) -> Content:
    """Content that was not inline. Raises as `reuse_content` does."""
    try:
        content = Content.FromString(body)
    except DecodeError as error:
        raise CorruptTable(
            f"the file of the fragment reuse index can't be decoded: {error}", code="index_details"
        ) from error
    return _known(content)


def _known(content: Content) -> Content:
    # Lance after 4.0 adds `transitions` beside the versions: what they say can't be left out.
    unknown = unknown_fields(content)
    if unknown:
        raise UnsupportedTable(
            f"the fragment reuse index has what is unknown to us: {', '.join(unknown)}",
            code="fragment_reuse_version",
        )
    return content


def _external(index: IndexMetadata, details: FragmentReuseIndexDetails) -> ExternalContent:
    file = details.external
    if index.HasField("base_id"):
        raise UnsupportedTable(
            f"index {index.name} lies in base {index.base_id}, outside the table's folder",
            code="fragment_reuse_base",
        )
    if not file.path or "/" in file.path:
        raise CorruptTable(
            f"index {index.name} has its content in {file.path!r}, no file of its folder",
            code="index_details",
        )
    return ExternalContent(index_prefix(index.uuid.uuid) + file.path, file.offset, file.offset + file.size)
