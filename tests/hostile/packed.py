"""Records that arrive compressed, with each codec that Kafka has: good ones, bad ones, and batches that grow.

kafka-python needs a library for each of two codecs; here pyarrow has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaProducer, codec
from kafka.errors import KafkaError
from kafka.producer.sender import Sender
from kafka.record import default_records

CODECS = ("gzip", "snappy", "lz4", "zstd")
_LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Of a frame of independent blocks of 64 KiB, as Kafka reads it."""
_LZ4_BLOCK = 64 * 1024
_BATCH_BYTES_MAX = 128 * 1024 * 1024
_SECONDS = 60


@contextlib.contextmanager
def packing_producer(servers: str, name: str) -> Iterator[Any]:
    """A producer of kafka-python that compresses with this codec, and sends all that it has as one batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "snappy", SimpleNamespace(compress=_snappy))
        patch.setattr(codec, "lz4", SimpleNamespace(compress=_lz4))
        patch.setattr(default_records, "lz4_encode", _lz4)
        # It would send a batch that the broker refuses again, in parts.
        patch.setattr(Sender, "_can_split", lambda *_: False)
        producer = KafkaProducer(
            bootstrap_servers=servers,
            compression_type=name,
            acks="all",
            linger_ms=200,
            batch_size=_BATCH_BYTES_MAX,
            max_request_size=_BATCH_BYTES_MAX,
        )
        with contextlib.closing(producer):
            yield producer


def stage(servers: str, topic: str, name: str, values: Sequence[bytes]) -> list[int] | None:
    """Stage the values as one batch; returns their offsets, or None if the broker refuses the batch."""
    with packing_producer(servers, name) as producer:
        futures = [producer.send(topic, value=value, partition=0) for value in values]
        producer.flush()
        try:
            return [future.get(_SECONDS).offset for future in futures]
        except KafkaError:
            return None


def _snappy(body: bytes) -> bytes:
    packed: bytes = pa.compress(body, codec="snappy", asbytes=True)
    return packed


def _lz4(body: bytes) -> bytes:
    blocks = [_LZ4_HEADER]
    for start in range(0, len(body), _LZ4_BLOCK):
        packed = pa.compress(bytes(body[start : start + _LZ4_BLOCK]), codec="lz4_raw", asbytes=True)
        blocks += [len(packed).to_bytes(4, "little"), packed]
    return b"".join([*blocks, bytes(4)])
