"""What is known of a table whose history has more records than the ledger may remember."""

from __future__ import annotations

from collections.abc import Sequence

from committerd.committer.view import View
from committerd.format.manifest_file import encode
from committerd.format.messages import Manifest, Member, Transaction
from committerd.format.paths import NamingScheme, manifest_key
from committerd.rules.answers import Settled, encode_settled
from committerd.rules.ledger import NOT_SEEN, Ledger
from committerd.rules.position import Position, encode_metadata
from committerd.table import Table
from tests.simulation.staging import column
from tests.simulation.store import Bucket, FakeStore

LITTLE = 400
"""Bytes of a ledger that is full after a few records."""
AHEAD = 200


def view_of(bucket: Bucket) -> View:
    return View(table=Table(FakeStore(bucket)), monotonic=lambda: 0.0, ledger=Ledger(bytes_max=LITTLE))


def put(bucket: Bucket, version: int, *, answers: int, next_offset: int, settled: Sequence[int]) -> None:
    """A version of the queue that answers one record."""
    position = Position(
        cluster_id="c", topic="t", topic_id="i", next_offset=next_offset, settled=tuple(settled), last_offset=-1
    )
    manifest = Manifest(version=version, fields=[column()], table_metadata=encode_metadata(position, {}))
    manifest.writer_version.library, manifest.writer_version.version = "lance", "14.0.2"
    manifest.data_format.file_format, manifest.data_format.version = "lance", "2.0"
    transaction = Transaction(uuid=f"u{answers}", read_version=version - 1)
    transaction.append.SetInParent()
    members = [Member(offset=answers, uuid=f"u{answers}")]
    transaction.transaction_properties.update(encode_settled(members, [], topic_id="i"))
    bucket.put(manifest_key(version, NamingScheme.V2), encode(manifest, (), transaction))


def settled_ahead_and_79_more() -> Bucket:
    """Version 1 answers offset 200, ahead of all others; version n + 2 answers offset n."""
    bucket = Bucket()
    put(bucket, 1, answers=AHEAD, next_offset=0, settled=[AHEAD])
    for offset in range(79):
        put(bucket, offset + 2, answers=offset, next_offset=offset + 1, settled=[AHEAD])
    return bucket


async def test_what_was_settled_ahead_is_found_below_versions_of_earlier_offsets() -> None:
    view = view_of(settled_ahead_and_79_more())
    answered = await view.load(lambda position: 70)
    assert view.ledger.floor > 0
    assert view.position is not None
    assert view.position.settled == (AHEAD,)
    assert 1 in answered.between(AHEAD, AHEAD)
    assert [*answered.between(70, 72)] == [74, 73, 72]


async def test_history_below_everything_that_is_owed_is_not_read() -> None:
    bucket = Bucket()
    for offset in range(80):
        put(bucket, offset + 1, answers=offset, next_offset=offset + 1, settled=[])
    view = view_of(bucket)
    answered = await view.load(lambda position: 70)
    assert answered.oldest > 1
    assert [*answered.between(70, 72)] == [73, 72, 71]


async def test_a_dropped_version_makes_a_record_unknown_as_long_as_it_can_be_read() -> None:
    bucket = settled_ahead_and_79_more()
    view = view_of(bucket)
    await view.load()
    floor = view.ledger.floor
    assert (await view.earlier("new", 0)).unknown_at == floor
    assert (await view.earlier("new", floor)) == NOT_SEEN
    for version in range(1, floor + 1):
        bucket.delete(manifest_key(version, NamingScheme.V2))
    assert (await view.earlier("new", 0)).unknown_at is None
    assert view.ledger.floor == 0
    assert view.ledger.rules_out("new", 0)


async def test_what_is_dropped_later_is_unknown_again() -> None:
    bucket = settled_ahead_and_79_more()
    view = view_of(bucket)
    await view.load()
    ahead = view.ledger.ahead([])
    ahead.nothing_is_dropped()
    assert view.ledger.floor == 0
    for number in range(81, 300):
        members = [Member(offset=number, uuid=f"m{number}")]
        view.ledger.add(Settled(version=number, uuid="", operation="append", ours=True, members=members))
    assert view.ledger.floor > 80
