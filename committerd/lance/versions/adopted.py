"""A version that another library has built on the latest one, made ours.

The library builds it under a number of its own, outside the history (`table.by_pylance`). All that committerd does not
know stays as the library wrote it, byte for byte or as unknown fields.
"""

from __future__ import annotations

from committerd.errors import CorruptTable, UnsupportedRequest
from committerd.lance.format.manifest_file import Body, ManifestFile, assemble_behind, decode
from committerd.lance.versions.draft import BuildInput, set_own_metadata, set_writer
from committerd_common.messages import Manifest, Message, Transaction
from committerd_common.paths import is_detached


def adopted(
    body: bytes, latest: ManifestFile, transaction: Transaction, *, asked: Transaction, given: BuildInput
) -> tuple[ManifestFile, Body]:
    """The version that follows `latest`, of the object that a library has built of it.

    `asked`: the transaction that the library was given; `transaction`: the one that the version stores.
    Raises `UnsupportedRequest` (`pylance_refused`) if the object is not what was asked for: the library did not
    understand all of the transaction, or its own number of the version is a part of the content.
    """
    try:
        file = decode(body)
    except CorruptTable as error:
        raise UnsupportedRequest(
            f"pylance built a version that can't be read: {error}", code="pylance_refused"
        ) from error
    inline = file.transaction
    if inline is None or _encoded(inline) != _encoded(asked):
        raise UnsupportedRequest(
            "pylance does not understand all of this transaction: what it would commit is not what was staged. Install "
            "the pylance with which it was staged",
            code="pylance_refused",
        )
    number = file.version
    varint = Manifest(version=number).SerializeToString()[1:]
    found = body.count(varint) + body.count(number.to_bytes(8, "little"))
    if not is_detached(number) or found != 1:
        raise UnsupportedRequest(
            f"pylance built the version under number {number}, and the number is a part of its content too, or is one "
            "of the history. committerd can't give it another one",
            code="pylance_refused",
        )
    outline = Manifest()
    outline.CopyFrom(file.outline)
    outline.version = latest.version + 1
    outline.tag = transaction.tag
    set_writer(outline, given, latest.outline)
    outline.writer_version.CopyFrom(file.outline.writer_version)
    set_own_metadata(outline, given.table_metadata)
    whole = assemble_behind(body, outline, file.fragments, transaction)
    return (
        ManifestFile(
            outline=outline,
            fragments=file.fragments,
            index_section=file.index_section,
            transaction=transaction,
            transaction_bytes=_encoded(transaction),
        ),
        whole,
    )


def require_kept(before: ManifestFile, after: ManifestFile) -> None:
    """Return if `after`, of a commit that changes nothing, has all of `before` that committerd does not know.

    Raises `UnsupportedRequest` (`pylance_refused`): the library does not know it either, and its commits drop it.
    """
    if (
        b"".join(before.fragments.bodies()) == b"".join(after.fragments.bodies())
        and _encoded(before.index_section) == _encoded(after.index_section)
        and _lasting(before.outline) == _lasting(after.outline)
    ):
        return
    raise UnsupportedRequest(
        f"pylance drops parts of version {before.version} that it does not know, in a commit that changes nothing. "
        "Install a later pylance",
        code="pylance_refused",
    )


def _lasting(outline: Manifest) -> bytes:
    """The manifest without what a commit sets even if it changes nothing."""
    kept = Manifest()
    kept.CopyFrom(outline)
    for name in ("version", "tag", "transaction_file"):
        kept.ClearField(name)
    parts: tuple[Message, ...] = (kept.timestamp, kept.writer_version)
    for part in parts:
        for field, _ in part.ListFields():
            part.ClearField(field.name)  # those that are not known stay
    for position in ("index_section", "transaction_section", "transaction_section_v14"):
        kept.ClearField(position)
    for word in ("reader_feature_flags", "writer_feature_flags"):
        kept.ClearField(word)
    return _encoded(kept)


def _encoded(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)
