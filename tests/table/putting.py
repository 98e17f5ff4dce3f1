"""Versions of a table that are put as they are, by the queue or by another writer."""

from __future__ import annotations

from collections.abc import Mapping

from committerd.lance.format.manifest_file import encode
from committerd.queue.outcomes import encode_settled
from committerd_common.messages import Manifest, Transaction
from committerd_common.paths import NamingScheme, manifest_key
from tests.simulation.staging import column
from tests.simulation.store import Bucket


def put_version(bucket: Bucket, version: int, metadata: Mapping[str, str], *, ours: bool = True) -> None:
    """Put a version of an empty table with this metadata. `ours`: whether it is one of the queue."""
    manifest = Manifest(version=version, fields=[column()], table_metadata=metadata)
    manifest.writer_version.library, manifest.writer_version.version = "lance", "14.0.2"
    manifest.data_format.file_format, manifest.data_format.version = "lance", "2.0"
    transaction = Transaction(uuid=f"u{version}", read_version=version - 1)
    transaction.append.SetInParent()
    if ours:
        transaction.transaction_properties.update(encode_settled((), (), topic_id="i"))
    bucket.put(manifest_key(version, NamingScheme.V2), encode(manifest, (), transaction))
