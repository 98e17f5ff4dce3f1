"""Records that are read column by column are those that kafka-python reads."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.protocol.consumer import IsolationLevel
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from committerd_ingest.batches import HEADERS_MAX, fetched, read_in_columns
from committerd_ingest.records import Record, Records

PLACE = TopicPartition("t", 0)


def batch(first: int, records: list[tuple[int, bytes | None, bytes | None, Any]], *, codec: int = 0) -> bytes:
    """A batch of (timestamp, key, value, headers)."""
    builder = MemoryRecordsBuilder(2, codec, 1 << 30)
    for one in records:
        assert builder.append(*one) is not None
    builder.close()
    return first.to_bytes(8, "big") + bytes(builder.buffer()[8:])


def read(data: bytes, *, begin: int = 0, columns: bool = True) -> list[Record]:
    """The records from an offset on, read by us or by the library."""
    kind: Any = Fetcher.PartitionRecords
    if columns:
        consumer: Any = type("Consumer", (), {"_fetcher": type("Fetcher", (), {})()})()
        read_in_columns(consumer)
        kind = consumer._fetcher.PartitionRecords
    part = kind(begin, PLACE, MemoryRecords(data), isolation_level=IsolationLevel.READ_COMMITTED)
    found: list[Record] = []
    while part:
        taken = part.take(3)
        found += fetched(taken) if columns else [Record(*_of(one)) for one in taken]
        assert part.next_fetch_offset == found[-1].offset + 1, columns
    return found


def _of(one: Any) -> tuple[Any, ...]:
    return one.offset, one.timestamp, one.key, one.value, one.headers


def listed(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(one.offset, one.timestamp_ms, one.key, one.value, list(one.headers)) for one in records]


def data_of(seed: int) -> bytes:
    chance = random.Random(seed)
    parts, first = [], chance.choice([0, 1 << 40])
    for _ in range(4):
        records: list[tuple[int, bytes | None, bytes | None, Any]] = []
        for _ in range(chance.randint(1, 200)):
            key, value = (
                chance.choice([None, b"", chance.randbytes(chance.choice([1, 63, 64, 9_000]))]) for _ in range(2)
            )
            headers = [("n" * chance.randint(0, 70), chance.choice([None, b"", b"v" * 70]))] * chance.choice([0, 0, 3])
            records.append((chance.randint(0, 1 << 42), b"" if key is None is value else key, value, headers))
        parts.append(batch(first, records, codec=chance.choice([0, 1])))
        first += len(records) + chance.choice([0, 5])
    return b"".join(parts)


@pytest.mark.parametrize("seed", range(10))
def test_they_are_the_same_from_each_offset_on(seed: int) -> None:
    data = data_of(seed)
    whole = read(data, columns=False)
    for begin in (0, whole[1].offset, whole[len(whole) // 2].offset, whole[-1].offset):
        assert listed(read(data, begin=begin)) == listed([one for one in whole if one.offset >= begin])


def test_names_of_headers_may_be_of_any_bytes_and_only_the_first_headers_are_read() -> None:
    many = [("h", b"1")] * (HEADERS_MAX + 500)
    data = bytearray(batch(7, [(5, b"k", b"v", [("name", b"x")]), (6, b"k", b"w", many), (7, None, b"end", [])]))
    data[data.index(b"name")] = 0xFF
    (first, second, third) = _unchecked(bytes(data))
    assert (first.headers, len(second.headers)) == ([("\ufffdame", b"x")], HEADERS_MAX)
    assert (third.value, third.offset, third.timestamp_ms) == (b"end", 9, 7)


def test_a_broker_s_timestamp_counts() -> None:
    data = bytearray(batch(0, [(5, None, b"a", []), (9, None, b"b", [])]))
    data[22] |= DefaultRecordBatch.TIMESTAMP_TYPE_MASK
    assert [one.timestamp_ms for one in _unchecked(bytes(data))] == [9, 9]


def test_the_records_before_what_is_damaged_are_read() -> None:
    data = batch(0, [(1, None, b"a" * 9, []), (1, None, b"b" * 9, [])])
    broken = bytearray(batch(2, [(1, None, b"c" * 9, []), (1, None, b"d" * 9, [])]))
    broken[broken.index(b"d") - 1] = 127  # the length of its value
    part = _part(data + bytes(broken))
    assert [one.offset for one in fetched(part.take(1))] == [0, 1, 2]
    with pytest.raises(CorruptRecordError):
        part.take(1)


def _unchecked(data: bytes) -> Records:
    return fetched(_part(data).take(1))


def _part(data: bytes) -> Any:
    """What was fetched, whose checksums are not compared."""
    consumer: Any = type("Consumer", (), {"_fetcher": type("Fetcher", (), {})()})()
    read_in_columns(consumer)
    return consumer._fetcher.PartitionRecords(0, PLACE, MemoryRecords(data), check_crcs=False)


def test_the_columns_of_a_part_are_parts_of_the_columns() -> None:
    records = Records.of([Record(n, n + 1, b"k", b"v" * n, [("h", b"1")]) for n in range(9)])
    assert list(records[2:4]) == [records[2], records[3]]
    assert (records[2:4].offsets, len(records)) == (array("q", [2, 3]), 9)
    assert [records.fitting(most, records[:5].size) for most in (4, 5, 9)] == [4, 5, 5]
    assert (Records().fitting(9, 0), records.fitting(9, records.size)) == (0, 9)
    rest = records[:]
    assert [*rest.cut(4), *rest.cut(0), *rest] == list(records)
    assert len(rest) == 5
    assert Records.of(records) is records
