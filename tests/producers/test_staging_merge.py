"""Merges: the keys in the filter, and that two merges never insert the same key."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd.lance.conflicts.key_filter import key_filter
from committerd.queue.outcomes import Status
from committerd_client import Staged, staging
from committerd_client.headers import StagedChange
from committerd_client.staging.errors import StagingError
from committerd_client.staging.keys import KeyHashes
from committerd_common.own_properties import BLAKE2B_8, BY_KEY, CHANGES, KEY_HASH, MERGE
from tests.producers import staging_oracle
from tests.producers.direct_commit import commit

pytestmark = pytest.mark.pylance


def hashes(table: pa.Table, *columns: pa.Field, most: int = 1000) -> Any:
    made = KeyHashes(list(enumerate(columns, start=3)), most=most)
    for batch in table.to_batches(max_chunksize=2):
        made.add(batch)
    return made.filter()


def hashed(*values: bytes | None) -> int:
    """The hash as documented."""
    parts = [b"\0" if value is None else b"\1" + len(value).to_bytes(4, "little") + value for value in values]
    return int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "little")


@pytest.mark.parametrize(
    ("kind", "values", "bytes_of_values"),
    [
        (pa.int64(), [1, -2], [(1).to_bytes(8, "little"), (-2).to_bytes(8, "little", signed=True)]),
        (pa.uint8(), [7], [b"\7"]),
        (pa.bool_(), [True, False], [b"\1", b"\0"]),
        (pa.utf8(), ["ä", ""], ["ä".encode(), b""]),
        (pa.large_utf8(), ["x"], [b"x"]),
        (pa.binary(), [b"\0"], [b"\0"]),
        (pa.binary(2), [b"ab"], [b"ab"]),
        (pa.date32(), [3], [b"\3\0\0\0"]),
        (pa.timestamp("ms", "Europe/Berlin"), [5], [(5).to_bytes(8, "little")]),
        (pa.decimal128(9, 2), [Decimal("1.5")], [(150).to_bytes(16, "little")]),
        (pa.decimal128(9, 2), [Decimal(-1)], [(-100).to_bytes(16, "little", signed=True)]),
        (pa.decimal256(40, 0), [Decimal(9)], [(9).to_bytes(32, "little")]),
        (pa.float64(), [0.0, -0.0], [bytes(8)]),
        (pa.float32(), [1.0], [b"\0\0\x80\x3f"]),
        (pa.dictionary(pa.int8(), pa.utf8()), ["x"], [b"x"]),
    ],
    ids=str,
)  # fmt: skip
def test_a_key_is_hashed_as_documented(kind: pa.DataType, values: list[Any], bytes_of_values: list[bytes]) -> None:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    made = hashes(pa.table({"k": pa.array([*values, None], plain).cast(kind)}), pa.field("k", kind))
    assert list(made.field_ids) == [3]
    assert set(made.exact.key_hashes) == {hashed(value) for value in (*bytes_of_values, None)}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [*range(700), None]),
        (pa.utf8(), [*map(str, range(700)), None]),
        (pa.float64(), [*map(float, range(700)), float("nan"), 0.0, -0.0, None]),
        (pa.decimal128(9, 2), [*map(Decimal, range(700)), None]),
        (pa.dictionary(pa.int16(), pa.utf8()), [*map(str, range(700)), None]),
        (pa.bool_(), [True, False, None]),
    ],
    ids=str,
)
def test_keys_that_many_rows_repeat_are_hashed_like_those_of_few(kind: pa.DataType, values: list[Any]) -> None:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    few = pa.table({"k": pa.array(values, plain).cast(kind), "other": range(len(values))})
    many = pa.concat_tables([few] * (5000 // len(values) + 1)).unify_dictionaries().combine_chunks()
    made = KeyHashes([(3, pa.field("k", kind))], most=1000)
    made.add_all(many.slice(1))
    assert made.filter() == hashes(few, pa.field("k", kind))


def test_rows_beyond_the_first_part_of_a_batch_are_hashed() -> None:
    made = KeyHashes([(3, pa.field("k", pa.int64()))], most=1000)
    made.add_all(pa.table({"k": [7] * 200_000 + [8]}))
    assert set(made.filter().exact.key_hashes) == {hashed(one.to_bytes(8, "little")) for one in (7, 8)}


def test_keys_that_several_batches_repeat_count_once() -> None:
    made = KeyHashes([(3, pa.field("k", pa.int64()))], most=5)
    for values in ([1, 2], [2, 3, 3], [4, 1], [5, 5]):
        made.add(pa.record_batch({"k": pa.array(values, pa.int64())}))
    assert not made.too_many
    assert made.has_one_of(pa.record_batch({"k": [9, 4]}))
    assert not made.has_one_of(pa.record_batch({"k": [9, 6]}))
    assert list(made.filter().exact.key_hashes) == sorted(hashed(one.to_bytes(8, "little")) for one in range(1, 6))
    made.add(pa.record_batch({"k": [5, 6]}))
    assert made.too_many
    assert made.has_one_of(pa.record_batch({"k": [9]}))
    assert made.filter().bloom.number_of_items


def test_too_many_keys_of_a_type_that_can_not_be_compared_are_refused() -> None:
    made = KeyHashes([(3, pa.field("k", pa.int64()))], most=1000)
    with pytest.raises(StagingError, match="the rows have string"):
        made.add_all(pa.table({"k": [f"x{number}" for number in range(5000)]}))


def test_a_sliced_column_has_its_own_values() -> None:
    table = pa.table({"k": pa.array([1, 2, None, 4], pa.int32())}).slice(1)
    made = hashes(table, pa.field("k", pa.int32()))
    assert set(made.exact.key_hashes) == {
        hashed((2).to_bytes(4, "little")),
        hashed(None),
        hashed((4).to_bytes(4, "little")),
    }


def test_a_key_of_several_columns_is_hashed_in_the_order_of_their_ids() -> None:
    table = pa.table({"b": ["x"], "a": pa.array([1], pa.int8())})
    first, second = pa.field("a", pa.int8()), pa.field("b", pa.utf8())
    made = KeyHashes([(9, second), (4, first)], most=10)
    for batch in table.to_batches():
        made.add(batch)
    assert list(made.filter().field_ids) == [4, 9]
    assert list(made.filter().exact.key_hashes) == [hashed(b"\1", b"x")]


def test_a_key_has_the_hash_of_the_tables_type_whatever_type_the_rows_have() -> None:
    field = pa.field("k", pa.decimal128(12, 2))
    made = [
        hashes(pa.table({"k": column}), field).exact.key_hashes
        for column in (pa.array([5], pa.int8()), pa.array([Decimal("5.0")]), pa.array([Decimal("5.00")]))
    ]
    assert made[0] == made[1] == made[2]


def test_every_nan_is_one_key() -> None:
    odd = pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(b"\1" + bytes(5) + b"\xf8\xff")])
    made = [hashes(pa.table({"k": column}), pa.field("k", pa.float64())) for column in (odd, pa.array([float("nan")]))]
    assert made[0] == made[1]


def test_too_many_keys_are_a_filter_that_shares_a_key_with_every_other() -> None:
    field = pa.field("k", pa.int64())
    few = hashes(pa.table({"k": [1, 2, 3]}), field, most=3)
    many = hashes(pa.table({"k": range(10)}), field, most=3)
    assert len(few.exact.key_hashes) == 3
    assert many.ByteSize() < 33_000
    assert key_filter(many).may_share_a_key(key_filter(few))
    assert key_filter(many).may_share_a_key(key_filter(many))
    other = pa.table({"k": [99]})
    assert not key_filter(few).may_share_a_key(key_filter(hashes(other, field)))


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.struct([("x", pa.int8())])], ids=str)
def test_keys_that_can_not_be_compared_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(staging.StagingError, match=r"key column 'k' is a .*, which can't be compared") as caught:
        hashes(pa.table({"k": pa.array([None], kind)}), pa.field("k", kind))
    assert caught.value.code == "key_type"


def test_keys_of_another_type_are_refused() -> None:
    with pytest.raises(staging.StagingError, match="key column 'k': the rows have string, the table int64") as caught:
        hashes(pa.table({"k": ["x"]}), pa.field("k", pa.int64()))
    assert caught.value.code == "key_type"


# Two writers


@pytest.fixture
def uri(tmp_path: Path) -> str:
    lance.write_dataset(pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]}), tmp_path / "t.lance")
    return str(tmp_path / "t.lance")


def rows(*ids: int, text: str = "new") -> pa.Table:
    return pa.table({"id": ids, "text": [text] * len(ids)})


async def test_of_two_upserts_of_one_new_key_one_is_to_be_executed_again(uri: str) -> None:
    base = lance.dataset(uri)
    first, second = (staging.merge_insert(base, rows(7, own), on="id") for own in (8, 9))
    assert (first.inserted, first.updated, first.deleted) == (2, 0, 0)
    assert (await commit(uri, first)).status is Status.COMMITTED
    assert (await commit(uri, second)).status is Status.RETRYABLE
    again = staging.merge_insert(lance.dataset(uri), rows(7, 9), on="id")
    assert (again.inserted, again.updated) == (1, 1)
    assert (await commit(uri, again)).status is Status.COMMITTED
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [1, 2, 3, 7, 8, 9]


async def test_upserts_of_different_keys_both_commit(uri: str) -> None:
    base = lance.dataset(uri)
    for staged in [staging.merge_insert(base, rows(new, old), on="id") for new, old in ((7, 1), (8, 2))]:
        assert (await commit(uri, staged)).status is Status.COMMITTED
    assert lance.dataset(uri).count_rows("text = 'new'") == 4
    assert lance.dataset(uri).count_rows() == 5


async def test_an_upsert_conflicts_with_one_that_pylance_commits_itself(tmp_path: Path) -> None:
    """Its filter is a Bloom filter, which is never compared with an exact one."""
    key = pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"})
    table = pa.table({"id": [1]}, schema=pa.schema([key]))
    lance.write_dataset(table, tmp_path)
    staged = staging.merge_insert(lance.dataset(tmp_path), pa.table({"id": [7]}, schema=table.schema))
    theirs = lance.dataset(tmp_path).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    theirs.execute(pa.table({"id": [7]}, schema=table.schema))
    assert (await commit(tmp_path, staged)).status is Status.RETRYABLE


async def test_an_upsert_conflicts_with_an_append_and_a_merge_that_inserts_nothing_does_not(uri: str) -> None:
    base = lance.dataset(uri)
    upsert = staging.merge_insert(base, rows(7), on="id")
    deletion = staging.merge_insert(
        base,
        rows(1).select(["id"]).to_reader(),
        on="id",
        when_matched_update_all=False,
        when_matched_delete=True,
        when_not_matched_insert_all=False,
    )
    assert (await commit(uri, staging.append(write_fragments(rows(7), base)))).status is Status.COMMITTED
    assert (await commit(uri, upsert)).status is Status.RETRYABLE
    assert (await commit(uri, deletion)).status is Status.COMMITTED
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [2, 3, 7]


async def test_an_upsert_passes_an_append_of_other_keys_that_names_them(uri: str) -> None:
    base = lance.dataset(uri)
    passing = staging.merge_insert(base, rows(7, 1), on="id")
    same = staging.merge_insert(base, rows(9), on="id")
    by_source = staging.merge_insert(base, rows(7), on="id", when_not_matched_by_source_delete="id < 0")
    added = rows(8, 9)
    keys = staging.keys_of(base, "id", added)
    assert (await commit(uri, staging.append(write_fragments(added, base), keys=keys))).status is Status.COMMITTED
    assert (await commit(uri, same)).status is Status.RETRYABLE
    assert (await commit(uri, by_source)).status is Status.RETRYABLE
    assert (await commit(uri, passing)).status is Status.COMMITTED
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [1, 2, 3, 7, 8, 9]
    assert lance.dataset(uri).count_rows("id = 1 and text = 'new'") == 1


def changing(*ids: int) -> Callable[[lance.LanceDataset], StagedChange]:
    return lambda base: staging.merge_insert(base, rows(*ids, text="x"), on="id", when_not_matched_insert_all=False)


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        (lambda base: staging.update(base, {"text": "'x'"}, "id < 3"), True),
        (lambda base: staging.update(base, {"id": "id + 6", "text": "'x'"}, "id < 3"), False),
        (lambda base: staging.update(base, {"text": "'x'"}, "id = 3"), False),
        (changing(1, 2), True),
        (changing(3), False),
    ],
    ids=["update", "update of keys", "update of the same row", "merge", "merge of the same row"],
)
async def test_an_upsert_passes_changes_of_other_rows_that_bring_no_key(
    uri: str, change: Callable[[lance.LanceDataset], StagedChange], passes: bool
) -> None:
    base = lance.dataset(uri)
    upsert = staging.merge_insert(base, rows(3, 7), on="id")
    by_source = staging.merge_insert(base, rows(7), on="id", when_not_matched_by_source_delete="text = 'x'")
    assert (await commit(uri, change(base))).status is Status.COMMITTED
    assert (await commit(uri, by_source)).status is Status.RETRYABLE
    assert ((await commit(uri, upsert)).status is Status.COMMITTED) is passes
    if passes:
        found = lance.dataset(uri).to_table().to_pylist()
        assert sorted((one["id"], one["text"]) for one in found) == [(1, "x"), (2, "x"), (3, "new"), (7, "new")]


def test_what_changes_a_struct_names_all_its_fields(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "s": [{"a": 1, "b": {"c": 2}}], "z": [3]})
    base = lance.write_dataset(table, tmp_path)
    staged = staging.update(base, {"z": "z + 1"})
    assert staged.transaction.transaction_properties == {CHANGES: "5"}
    merge = staging.merge_insert(base, table, on="id", when_not_matched_insert_all=False)
    assert merge.transaction.transaction_properties == {CHANGES: "1,2,3,4,5", MERGE: BY_KEY}


def test_keys_of_parts_are_joined(uri: str) -> None:
    base = lance.dataset(uri)
    one, two = (staging.keys_of(base, ["id"], rows(*some)) for some in ((1, 2), (2, 3)))
    assert staging.joined_keys([one, two]) == staging.keys_of(base, "id", rows(1, 2, 3))
    many = staging.keys_of(base, "id", rows(1, 2), keys_max=1)
    assert staging.joined_keys([one, many]) is None
    assert staging.joined_keys([]) is None
    fragments = write_fragments(rows(1, 2), base)
    named = staging.append(fragments, keys=one).transaction_properties
    assert named[KEY_HASH] == BLAKE2B_8
    assert not staging.append(fragments, keys=many).transaction_properties
    assert not staging.append(fragments).transaction_properties


def test_a_reader_is_read_once_and_its_keys_are_those_of_a_table(uri: str) -> None:
    base = lance.dataset(uri)
    table = rows(*range(2, 50))
    read: list[int] = []

    def batches() -> Any:
        for batch in table.to_batches(max_chunksize=7):
            read.append(batch.num_rows)
            yield batch

    reader = pa.RecordBatchReader.from_batches(table.schema, batches())
    streamed, whole = (staging.merge_insert(base, source, on="id") for source in (reader, table))
    assert sum(read) == 48
    assert streamed.transaction.update.inserted_rows == whole.transaction.update.inserted_rows
    assert (streamed.inserted, streamed.updated) == (46, 2) == (whole.inserted, whole.updated)
    assert staging.merge_insert(base, table.to_batches()[0], on="id").inserted == 46


def test_the_keys_of_many_rows_are_those_of_few(uri: str) -> None:
    base = lance.dataset(uri)
    many = rows(*range(2, 20_000))
    merged = staging.merge_insert(base, many, on="id")
    assert (merged.inserted, merged.updated) == (19_996, 2)
    assert merged.transaction.update.inserted_rows == staging.keys_of(base, "id", many)
    assert merged.transaction.transaction_properties[KEY_HASH] == BLAKE2B_8
    wrong = pa.table({"id": [[one] for one in range(20_000)], "text": ["x"] * 20_000})
    with pytest.raises(staging.StagingError) as caught:
        staging.merge_insert(base, wrong, on="id")
    assert caught.value.code == "key_type"


def test_a_merge_without_effect_says_so(uri: str) -> None:
    nothing = staging.merge_insert(lance.dataset(uri), rows(9), on="id", when_not_matched_insert_all=False)
    assert not nothing.changes
    assert not nothing.transaction.update.HasField("inserted_rows")
    assert staging.merge_insert(lance.dataset(uri), rows(9), on="id").changes


@pytest.mark.parametrize(
    ("source", "on", "code"),
    [
        (rows(1), None, "column"),
        (rows(1), "gone", "column"),
        (pa.table({"text": ["x"]}), "id", "keys_missing"),
    ],
)
def test_what_can_not_be_merged_is_refused(uri: str, source: pa.Table, on: str | None, code: str) -> None:
    with pytest.raises(staging.StagingError) as caught:
        staging.merge_insert(lance.dataset(uri), source, on=on)
    assert caught.value.code == code


def test_rows_in_another_form_are_refused(uri: str) -> None:
    given: Any = [{"id": 1}]
    with pytest.raises(TypeError, match="a pyarrow Table, RecordBatch or RecordBatchReader is needed, not list"):
        staging.merge_insert(lance.dataset(uri), given, on="id")


# Types


@pytest.mark.parametrize("name", sorted(staging_oracle.SCHEMAS.keys() - {"blob"}))
async def test_rows_of_any_type_are_merged_and_updated_as_pylance_does(tmp_path: Path, name: str) -> None:
    schema = staging_oracle.SCHEMAS[name].append(pa.field("key", pa.int64()))
    values = staging_oracle.rows(schema).drop_columns(["key"])

    def keyed(*keys: int) -> pa.Table:
        return values.append_column("key", pa.array(keys, pa.int64())).cast(schema)

    ours, theirs = (str(tmp_path / who) for who in ("ours", "theirs"))
    lance.write_dataset(keyed(1, 2, 3), ours)
    shutil.copytree(ours, theirs)
    merge = lance.dataset(theirs).merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(keyed(3, 4, 5))
    lance.dataset(theirs).update({"key": "key + 10"}, where="key > 1")
    changes: list[Callable[[lance.LanceDataset], Staged]] = [
        lambda table: staging.merge_insert(table, keyed(3, 4, 5), on="key"),
        lambda table: staging.update(table, {"key": "key + 10"}, "key > 1"),
    ]
    for change in changes:
        assert (await commit(ours, change(lance.dataset(ours)))).status is Status.COMMITTED
    assert lance.dataset(ours).to_table().sort_by("key") == lance.dataset(theirs).to_table().sort_by("key")
    assert lance.dataset(ours).schema.equals(lance.dataset(theirs).schema, check_metadata=True)
