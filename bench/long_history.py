"""Make a table with a long history, quickly: versions that committed many records each, without data.

    .venv/bin/python -m bench.long_history FOLDER --versions 10000 --members 1000

Each version is an Append from the queue with its transaction inline and its members named in it, as a committer writes
it. The fragments are few, as after compactions, or grow to `--fragments` in the last version; only then do the Appends
add fragments. There are no data files: programs that read versions can read the table, and those that read rows can't.

With `--last-of-the-queue VERSION` other writers have committed all versions above that one (0: all), and carry on the
position that they found, as pylance does.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from committerd.lance.format.manifest_file import encode
from committerd.queue.outcomes import encode_settled
from committerd.queue.port import TopicIdentity
from committerd.queue.position import Position, encode_metadata, start_of
from committerd_common.messages import DataFile, DataFragment, Field, Manifest, Member, Transaction
from committerd_common.paths import NamingScheme, manifest_key

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
FRAGMENTS_MAX = 100


def uuid_of(offset: int) -> str:
    """The uuid of the record at this offset; it looks random."""
    return str(uuid.UUID(int=(offset * 0x9E3779B97F4A7C15F39CC0605CEDC835 + offset) % 2**128))


def write(
    folder: Path,
    *,
    versions: int,
    members: int,
    fragments: int,
    identity: TopicIdentity,
    of_queue: Callable[[int], bool] = lambda version: True,
) -> Position:
    """Write the versions, the first one without a record; return the position of the last.

    `of_queue`: whether a version is of the queue; other writers have committed the others.
    """
    (folder / "_versions").mkdir(parents=True)
    position = start_of(identity, 0)
    metadata: dict[str, str] = {}
    held: list[DataFragment] = []
    for version in range(1, versions + 1):
        offsets = range(0)
        if version > 1 and of_queue(version):
            offsets = range(position.next_offset, position.next_offset + members)
            position = Position(
                cluster_id=identity.cluster_id,
                topic=identity.topic,
                topic_id=identity.topic_id,
                next_offset=offsets.stop,
                last_offset=offsets[-1],
                last_sha256="0" * 64,
            )
            metadata = encode_metadata(position, {})
        wanted = min(FRAGMENTS_MAX, version) if fragments == 0 else fragments * version // versions
        first = held[-1].id + 1 if held else 0
        new = [_fragment(first + number) for number in range(max(0, wanted - len(held)))]
        held += new
        manifest = Manifest(
            version=version,
            fields=[Field(name="id", type=Field.LEAF, id=0, parent_id=-1, logical_type="int64", nullable=True)],
            fragments=held,
            max_fragment_id=max((one.id for one in held), default=0),
            data_format=Manifest.DataStorageFormat(file_format="lance", version="2.0"),
            writer_version=Manifest.WriterVersion(library="lance", version="4.0.0"),
            table_metadata=metadata,
        )
        manifest.timestamp.FromDatetime(BEGAN + timedelta(seconds=version))
        appended = new if fragments else [_fragment(offset) for offset in offsets or range(version, version + 1)]
        transaction = _transaction(version, list(offsets), appended, identity)
        (folder / manifest_key(version, NamingScheme.V2)).write_bytes(encode(manifest, [], transaction))
    return position


def _fragment(number: int) -> DataFragment:
    file = DataFile(
        path=f"{uuid_of(2**64 + number)}.lance",
        fields=[0],
        column_indices=[0],
        file_major_version=2,
        file_size_bytes=1000,
    )
    return DataFragment(id=number, files=[file], physical_rows=100)


def _transaction(
    version: int, offsets: list[int], appended: list[DataFragment], identity: TopicIdentity
) -> Transaction:
    transaction = Transaction(uuid=uuid_of(2**65 + version), read_version=version - 1)
    if version == 1:
        transaction.overwrite.SetInParent()
        return transaction
    transaction.append.fragments.extend(appended)
    if not offsets:
        return transaction
    named = [Member(offset=offset, uuid=uuid_of(offset), producer="writer", read_version=1) for offset in offsets]
    transaction.transaction_properties.update(encode_settled(named, [], topic_id=identity.topic_id))
    return transaction


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Where to make the table; must not be there.")
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--members", type=int, default=1000, help="Records that each version but the first commits.")
    parser.add_argument("--fragments", type=int, default=0, help="Of the last version; 0 = few in each.")
    parser.add_argument("--last-of-the-queue", type=int, help="Other writers have committed all versions above it.")
    parser.add_argument("--cluster-id", default="a cluster")
    parser.add_argument("--topic", default="events.staged")
    parser.add_argument("--topic-id", default="AAAAAAAAAAAAAAAAAAAAAA")
    given = parser.parse_args()
    last = given.versions if given.last_of_the_queue is None else given.last_of_the_queue
    position = write(
        given.folder,
        versions=given.versions,
        members=given.members,
        fragments=given.fragments,
        identity=TopicIdentity(cluster_id=given.cluster_id, topic=given.topic, topic_id=given.topic_id),
        of_queue=lambda version: version <= last,
    )
    print(f"{given.folder}: {given.versions} versions, next offset {position.next_offset}")


if __name__ == "__main__":
    main()
