"""Queue entries of large manifests, read without their fragments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from committerd.lance.format.manifest_file import TAIL_BYTES, encode
from committerd.queue.outcomes import Settled, encode_settled
from committerd.stores.local import LocalStore
from committerd.table.versions import Table
from committerd_common.messages import DataFile, DataFragment, IndexMetadata, Manifest, Member, Transaction
from committerd_common.paths import NamingScheme, manifest_key

MEMBER = Member(offset=4, uuid="a")


class Counted(LocalStore):
    """Counts the bytes that are read."""

    read_bytes = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        body = await super().get_range(key, start, end)
        self.read_bytes += len(body or b"")
        return body


def large(indices: Sequence[IndexMetadata] = (), *, note: str = "") -> bytes:
    manifest = Manifest(version=3)
    for number in range(20_000):
        manifest.fragments.append(DataFragment(id=number, files=[DataFile(path=f"{number:050}.lance")]))
    transaction = Transaction(uuid="group", read_version=2)
    transaction.append.SetInParent()
    transaction.transaction_properties.update(encode_settled([MEMBER], [], topic_id="t"))
    if note:
        transaction.transaction_properties["note"] = note
    return encode(manifest, indices, transaction)


async def settled(folder: Path, body: bytes) -> tuple[Settled | None, int]:
    key = manifest_key(3, NamingScheme.V2)
    (folder / "_versions").mkdir()
    (folder / key).write_bytes(body)
    store = Counted(folder)
    return await Table(store).settled(3), store.read_bytes


EXPECTED = Settled(version=3, uuid="group", operation="append", ours=True, members=[MEMBER], refusals=[], topic_id="t")


async def test_of_a_large_manifest_only_the_front_is_read(tmp_path: Path) -> None:
    body = large()
    found, read = await settled(tmp_path, body)
    assert found == EXPECTED
    assert read <= TAIL_BYTES < len(body) / 10


async def test_indices_in_front_are_passed_over(tmp_path: Path) -> None:
    indices = [IndexMetadata(name=f"{n:09}", fields=[n]) for n in range(10_000)]
    found, read = await settled(tmp_path, large(indices))
    assert found == EXPECTED
    assert read <= 2 * TAIL_BYTES


async def test_a_transaction_larger_than_one_read_is_read_whole(tmp_path: Path) -> None:
    found, _ = await settled(tmp_path, large(note="x" * 3 * TAIL_BYTES))
    assert found == EXPECTED


@pytest.mark.parametrize("with_file", [True, False])
async def test_without_an_inline_transaction_the_file_says_it(tmp_path: Path, with_file: bool) -> None:
    body = large([IndexMetadata(name="only")])
    # The same object as an old writer would have made it: indices, manifest, and the transaction in a file of its own.
    index_end = 4 + int.from_bytes(body[:4], "little")
    transaction_end = index_end + 4 + int.from_bytes(body[index_end : index_end + 4], "little")
    transaction = body[index_end + 4 : transaction_end]
    manifest = Manifest.FromString(body[transaction_end + 4 : -16])
    manifest.ClearField("transaction_section")
    manifest.transaction_file = "2-group.txn"
    encoded = manifest.SerializeToString()
    old = body[:index_end] + len(encoded).to_bytes(4, "little") + encoded
    old += index_end.to_bytes(8, "little") + body[-8:]
    if with_file:
        (tmp_path / "_transactions").mkdir()
        (tmp_path / "_transactions/2-group.txn").write_bytes(transaction)
    found, _ = await settled(tmp_path, old)
    assert found == (EXPECTED if with_file else Settled(version=3, uuid="", operation="", ours=False))


async def test_a_version_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert await Table(LocalStore(tmp_path)).settled(3) is None
