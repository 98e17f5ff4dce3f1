"""The size of an Arrow file's batches, whatever its bytes say."""

from __future__ import annotations

import io
import random
import struct
from contextlib import suppress

import pyarrow as pa
import pytest

from committerd_common.arrow_file import decompressed_bytes
from committerd_common.malformed import MalformedError


def written(*batches: pa.RecordBatch, compression: str | None = None, **options: object) -> bytes:
    sink = io.BytesIO()
    chosen = pa.ipc.IpcWriteOptions(compression=compression, **options)
    with pa.ipc.new_file(sink, batches[0].schema, options=chosen) as writer:
        for one in batches:
            writer.write_batch(one)
    return sink.getvalue()


def batch(*columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns), names=[f"c{number}" for number in range(len(columns))])


NUMBERS = pa.array(range(1000), pa.uint32())
WITH_NULLS = pa.array([None, *range(999)], pa.uint64())


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_is_that_of_all_buffers_of_all_batches(compression: str | None) -> None:
    body = written(batch(NUMBERS, WITH_NULLS), batch(NUMBERS, WITH_NULLS), compression=compression)
    # Buffers are padded to 8 bytes, or compressed at their own length.
    assert decompressed_bytes(body) in (2 * (4000 + 125 + 8000), 2 * (4000 + 128 + 8000))
    assert decompressed_bytes(written(batch(NUMBERS.slice(0, 0)), compression=compression)) == 0


def test_a_buffer_that_did_not_shrink_is_as_long_as_it_is() -> None:
    noise = pa.array(random.Random(1).randbytes(1) for _ in range(3))
    body = written(batch(noise), compression="zstd")
    assert 0 < decompressed_bytes(body) < len(body)


def test_a_file_of_the_format_before_arrow_1_is_refused() -> None:
    old = pa.ipc.MetadataVersion.V4
    with pytest.raises(MalformedError, match="an old version"):
        decompressed_bytes(written(batch(NUMBERS), metadata_version=old))


def test_the_framing_of_arrow_0_14_is_read() -> None:
    body = written(batch(NUMBERS), use_legacy_format=True)
    assert decompressed_bytes(body) == 4000


def test_dictionaries_are_refused() -> None:
    with pytest.raises(MalformedError, match="dictionaries"):
        decompressed_bytes(written(batch(pa.array(["a", "a"]).dictionary_encode())))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_damage_is_refused_or_read(compression: str | None) -> None:
    good = written(batch(NUMBERS), compression=compression)
    rng = random.Random(0)
    for body in (b"", b"ARROW1", good[:-20], good[20:]):
        with pytest.raises(MalformedError):
            decompressed_bytes(body)
    for _ in range(3000):
        damaged = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(good) - 8)
            kind, number = rng.choice((("<B", rng.randrange(256)), ("<q", -1)))
            struct.pack_into(kind, damaged, place, number)
        with suppress(MalformedError):
            decompressed_bytes(bytes(damaged))
