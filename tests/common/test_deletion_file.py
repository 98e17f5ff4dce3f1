from __future__ import annotations

import io
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from committerd.errors import CorruptTable, InvalidRequest
from committerd_common.arrow_file import only_values
from committerd_common.deletion_file import Frames, decode_deletions, encode_bitmap
from committerd_common.messages import DataFragment, DeletionFile
from tests.lance.format.golden_tables import TABLES, WRITERS, deletion_bytes, facts, manifest_file

# Written by pylance 4.0.0: rows 0 to 9 and 20 to 29 in an array container.
WITHOUT_RUNS = bytes.fromhex(
    "3a30000001000000000013001000000000000100020003000400050006000700080009001400150016001700180019001a001b001c001d00"
)
ROWS = BitMap([*range(10), *range(20, 30)])
ROW_ID = pa.field("row_id", pa.uint32(), nullable=False)


def fragment(kind: DeletionFile.DeletionFileType.ValueType, *, deleted: int = 0, rows: int = 0) -> DataFragment:
    file = DeletionFile(file_type=kind, num_deleted_rows=deleted)
    return DataFragment(id=6, physical_rows=rows, deletion_file=file)


ARROW = fragment(DeletionFile.ARROW_ARRAY)
BITMAP = fragment(DeletionFile.BITMAP)


def arrow_file(
    *batches: list[int | None],
    field: Any = ROW_ID,
    metadata: dict[str, str] | None = None,
    compression: str | None = None,
) -> bytes:
    sink = io.BytesIO()
    schema = pa.schema([field], metadata=metadata)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(pa.record_batch([pa.array(batch, field.type)], schema=schema))
    return sink.getvalue()


def fault(body: bytes, of: DataFragment, frames: Frames | None = None) -> str:
    with pytest.raises(CorruptTable) as caught:
        decode_deletions(body, of, staged=False, frames=frames)
    assert caught.value.code == "deletion_file"
    return str(caught.value)


def test_every_deletion_file_that_pylance_wrote_has_the_rows_that_it_does_not_read() -> None:
    seen = set()
    for writer in WRITERS:
        for table in TABLES:
            for version, expected in facts(writer)[table].items():
                for each in manifest_file(writer, table, int(version)).manifest.fragments:
                    if not each.HasField("deletion_file"):
                        continue
                    body = deletion_bytes(writer, table, each)
                    read = BitMap()
                    for start, end in expected["fragments"][str(each.id)]["offsets"]:
                        read.add_range(start, end)
                    deleted = decode_deletions(body, each, staged=False)
                    assert deleted == BitMap(range(each.physical_rows)) - read
                    seen.add((writer, each.deletion_file.file_type))
    kinds = (DeletionFile.ARROW_ARRAY, DeletionFile.BITMAP)
    assert seen == {(writer, kind) for writer in WRITERS for kind in kinds}


def test_a_bitmap_is_read_with_run_containers_and_without() -> None:
    with_runs = encode_bitmap(ROWS)
    assert struct.unpack("<HH", with_runs[:4]) == (12347, 0)
    for body in (WITHOUT_RUNS, with_runs):
        assert decode_deletions(body, BITMAP, staged=False) == ROWS


@given(st.sets(st.integers(0, 2**32 - 1), min_size=1))
def test_a_bitmap_is_read_as_it_was_written(rows: set[int]) -> None:
    bitmap = BitMap(rows)
    of = fragment(DeletionFile.BITMAP, deleted=len(rows))
    assert decode_deletions(encode_bitmap(bitmap), of, staged=True) == bitmap
    assert bitmap == BitMap(rows)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_an_arrow_file_is_read_in_any_order_and_compression(compression: str | None) -> None:
    body = arrow_file([9, 2, 2**32 - 1, 4], compression=compression)
    assert decode_deletions(body, ARROW, staged=False) == BitMap([2, 4, 9, 2**32 - 1])


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_files_that_differ_in_their_rows_only_are_all_read_and_all_checked(compression: str | None) -> None:
    frames: Frames = {}
    for first in range(70):
        for size in (1, 2, 3, 40):
            rows = [*range(first + size, first, -1)]
            body = arrow_file(rows, compression=compression)
            assert decode_deletions(body, ARROW, staged=False, frames=frames) == BitMap(rows)
        twice = arrow_file([first, first], compression=compression)
        assert "occur more than once" in fault(twice, ARROW, frames)
        assert "are null" in fault(arrow_file([first, None, 2], compression=compression), ARROW, frames)
    other = arrow_file([1, 2], field=pa.field("row_ix", pa.uint32(), nullable=False), compression=compression)
    assert len(other) == len(arrow_file([1, 2], compression=compression))
    assert "its columns are" in fault(other, ARROW, frames)


def test_files_of_a_few_rows_are_read_without_arrow_from_the_second_on(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: Frames = {}
    assert decode_deletions(arrow_file([5, 6, 7]), ARROW, staged=False, frames=frames) == BitMap([5, 6, 7])
    with monkeypatch.context() as patched:
        patched.delattr(pa.ipc, "open_file")
        assert decode_deletions(arrow_file([7, 8, 2]), ARROW, staged=False, frames=frames) == BitMap([2, 7, 8])


def test_a_file_whose_rows_lie_where_its_metadata_does_is_no_pattern_for_others() -> None:
    """Its batch says that the rows lie where the batch says so itself."""
    body = bytearray(arrow_file([5, 6, 7, 8]))
    (offset,) = [place for place in range(len(body)) if body[place : place + 16] == struct.pack("<qq", 0, 16)]
    assert only_values(bytes(body))
    body[offset : offset + 8] = struct.pack("<q", -64)
    assert not only_values(bytes(body))


def test_an_empty_file_deletes_nothing() -> None:
    assert decode_deletions(arrow_file([]), ARROW, staged=False) == BitMap()
    assert decode_deletions(encode_bitmap(BitMap()), fragment(DeletionFile.BITMAP, rows=3), staged=False) == BitMap()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (arrow_file([1], field=pa.field("row_id", pa.uint32())), r"its columns are \[pyarrow.Field"),
        (arrow_file([1], field=pa.field("rows", pa.uint32(), nullable=False)), "exactly"),
        (arrow_file([1], field=pa.field("row_id", pa.int32(), nullable=False)), "exactly"),
        (arrow_file([1], metadata={"k": "v"}), "without metadata"),
        (arrow_file([1], field=ROW_ID.with_metadata({"k": "v"})), "without metadata"),
        (arrow_file([1], [2]), "it has 2 batches; one is needed"),
        (arrow_file(), "it has 0 batches"),
        (arrow_file([1, 1, 2, 1]), "2 of its row offsets occur more than once"),
        (b"", "it is not an Arrow file"),
        (b"ARROW1", "it is not an Arrow file"),
        (arrow_file([1, 2])[:-30], "it is not an Arrow file"),
        (WITHOUT_RUNS, "it is not an Arrow file"),
    ],
)
def test_an_arrow_file_that_pylance_would_refuse_is_refused(body: bytes, message: str) -> None:
    assert fault(body, ARROW).startswith("deletion file of fragment 6: ")
    with pytest.raises(CorruptTable, match=message):
        decode_deletions(body, ARROW, staged=False)


def test_nulls_in_an_arrow_file_are_refused_whatever_its_schema_says() -> None:
    nullable = arrow_file([1, None], field=pa.field("row_id", pa.uint32()))
    assert "its columns are" in fault(nullable, ARROW)
    body = arrow_file([1, None, 3])
    assert "1 of its row offsets are null" in fault(body, ARROW)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"abc",
        WITHOUT_RUNS[:-1],
        BitMap64(ROWS).serialize(),
        arrow_file([1]),
        # 9 before 1: not ascending
        WITHOUT_RUNS[:16] + b"\x09\x00" + WITHOUT_RUNS[18:],
    ],
)
def test_what_is_no_32_bit_bitmap_is_refused(body: bytes) -> None:
    assert "it is not a portable 32-bit Roaring bitmap" in fault(body, BITMAP)


def test_a_damaged_compressed_file_is_refused() -> None:
    body = arrow_file(list(range(4000)), compression="zstd")
    magic = bytes.fromhex("28b52ffd")
    assert magic in body
    assert "it is not an Arrow file" in fault(body.replace(magic, bytes(4)), ARROW)


def test_an_arrow_file_that_grows_when_it_is_decompressed_is_refused_before_it_is() -> None:
    body = arrow_file([0] * 2**22, compression="zstd")
    assert len(body) < 5_000
    assert "its rows take 16777216 bytes; an Arrow file may have 4194304" in fault(body, ARROW)
    assert len(decode_deletions(arrow_file(list(range(2**20)), compression="lz4"), ARROW, staged=False)) == 2**20
    claims = arrow_file(list(range(5000)), compression="zstd").replace(
        struct.pack("<q", 20_000), struct.pack("<q", 2**62)
    )
    assert "its rows take" in fault(claims, ARROW)


def test_a_file_is_compared_with_what_the_fragment_says_of_it() -> None:
    kind = DeletionFile.BITMAP
    assert decode_deletions(WITHOUT_RUNS, fragment(kind, deleted=20, rows=30), staged=False)
    assert "it deletes 20 rows where the fragment says 19" in fault(WITHOUT_RUNS, fragment(kind, deleted=19, rows=30))
    assert "it deletes row 29 where the fragment has 29" in fault(WITHOUT_RUNS, fragment(kind, deleted=20, rows=29))


def test_a_file_of_unknown_type_is_refused() -> None:
    unknown = DataFragment(id=6, deletion_file=DeletionFile.FromString(b"\x08\x02"))
    assert "it is of type 2, which committerd does not know" in fault(WITHOUT_RUNS, unknown)


def test_a_staged_file_is_the_producers_fault() -> None:
    with pytest.raises(InvalidRequest, match="deletion file of fragment 6") as caught:
        decode_deletions(b"abc", BITMAP, staged=True)
    assert caught.value.code == "deletion_file"
