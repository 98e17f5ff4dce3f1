"""A fragment has as many rows as its files: a reader believes the fragment, and makes up missing rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd.errors import CommitterError
from committerd.lance.operations.permissions import ANYTHING
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import Status
from committerd.stores.local import LocalStore
from committerd.stores.port import TailOrError
from committerd.table import data_files
from committerd.table.case import PrepareOptions
from committerd.table.fetching import Fetcher
from committerd.table.file_ends import END_BYTES, END_BYTES_MAX, EndBytes
from committerd.table.needs import FoundFile, NamedFile, Staged
from committerd.table.places import Location
from committerd.table.prepare import Prepared
from committerd.table.versions import Table
from committerd_client.staging.fragments import fragment as message_of
from committerd_common.messages import DataFile, DataFragment, Transaction
from tests.lance.samples import fragment, manifest
from tests.table.scene import Scene, append

pytestmark = pytest.mark.pylance

ROWS = 200_000
VERIFYING = PrepareOptions(allowed=ANYTHING, verify_files=True)


def written(root: Path, data: pa.Table) -> DataFragment:
    """A fragment of one file, as pylance stages it."""
    lance.write_dataset(data.slice(0, 1), str(root), data_storage_version="2.0")
    (made,) = write_fragments(data, str(root), mode="append", data_storage_version="2.0")
    return message_of(made)


@pytest.mark.parametrize("says_size", [True, False])
@pytest.mark.parametrize("rows", [2**31, ROWS + 1, ROWS - 1])
async def test_other_rows_than_the_file_has_are_refused(tmp_path: Path, rows: int, says_size: bool) -> None:
    scene = Scene(tmp_path / "t")
    lying = written(scene.root, pa.table({"n": pa.nulls(ROWS)}))
    lying.physical_rows = rows
    if not says_size:
        lying.files[0].ClearField("file_size_bytes")
    answer = await scene.commit(append(1, lying), VERIFYING)
    assert isinstance(answer, Refused)
    reason = "physical_rows_too_many" if rows > ROWS else "physical_rows_too_few"
    assert (answer.status, answer.reason) == (Status.INVALID, reason)
    assert f"has {ROWS} rows, and its fragment {rows}" in answer.message


async def test_many_rows_in_few_bytes_are_committed_where_the_file_has_them(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    truthful = written(scene.root, pa.table({"n": pa.nulls(ROWS)}))
    assert truthful.files[0].file_size_bytes * 16 < ROWS
    answer = await scene.commit(append(1, truthful), VERIFYING)
    assert isinstance(answer, Prepared)
    assert lance.dataset(str(scene.root)).count_rows() == ROWS + 1


async def said(scene: Scene, keys: Sequence[str]) -> dict[str, FoundFile | CommitterError | None]:
    """What is known of these files."""
    fetch = Fetcher(scene.table())
    (facts,) = await fetch.staged([Staged(files=[NamedFile(Location(key), 0) for key in keys], deletion_bytes_max=0)])
    return {location.key: found for location, found in facts.files.items()}


@pytest.mark.parametrize("columns", [3, 3_000])
async def test_facts_are_those_of_the_file(tmp_path: Path, columns: int) -> None:
    """A wide file has its descriptor far from its end."""
    scene = Scene(tmp_path / "t")
    made = written(scene.root, pa.table({f"c{one}": pa.array([one] * 3, pa.int32()) for one in range(columns)}))
    key = f"data/{made.files[0].path}"
    found = await said(scene, [key, "data/missing.lance", "_indices/none"])
    assert (found["data/missing.lance"], found["_indices/none"]) == (None, None)
    one = found[key]
    assert isinstance(one, FoundFile)
    assert one.size == await scene.store.head(key)
    assert one.said is not None
    assert (one.said.rows, one.said.columns) == (3, columns)


async def test_facts_of_many_files_take_little_memory(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    columns = {f"column_{one}": pa.array([one], pa.int32()) for one in range(100)}
    made = written(scene.root, pa.table(columns))
    body = scene.path(f"data/{made.files[0].path}").read_bytes()
    keys = [f"data/{number}.lance" for number in range(2_000)]
    for key in keys:
        scene.path(key).write_bytes(body)
    tracemalloc.start()
    try:
        found = await said(scene, keys)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.keys() == set(keys)
    facts = [one.said for one in found.values() if isinstance(one, FoundFile)]
    assert len({id(one.fields) for one in facts if one}) == 1
    assert most < 5_000 * len(keys) < min(len(body), 16 * 1024) * len(keys)


async def test_types_are_not_known_where_schemas_would_take_too_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path / "t")
    one = written(scene.root, pa.table({"one": [1, 2]}))
    other = written(tmp_path / "other", pa.table({"other": [1, 2, 3]}))
    keys = ["data/one.lance", "data/other.lance", "data/again.lance"]
    for key, root, made in zip(keys, (scene.root, tmp_path / "other", scene.root), (one, other, one), strict=True):
        scene.path(key).write_bytes((Path(root) / "data" / made.files[0].path).read_bytes())
    first = (await said(scene, keys[:1]))[keys[0]]
    assert isinstance(first, FoundFile)
    assert first.said is not None
    monkeypatch.setattr(data_files, "_SCHEMA_BYTES_MAX", len(first.said.fields))
    found = await said(scene, keys)
    facts = [one.said for one in map(found.get, keys) if isinstance(one, FoundFile) and one.said]
    assert sorted((one.rows, len(one.fields) > 0) for one in facts) in (
        [(2, True), (2, True), (3, False)],
        [(2, False), (2, False), (3, True)],
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda file: file.column_indices.__setitem__(0, 7), "column_indices"),
        (lambda file: file.column_indices.__setitem__(slice(0, 2), [1, 0]), "column_type"),
    ],
)
async def test_columns_that_the_file_has_otherwise_are_refused(
    change: Callable[[DataFile], object], code: str, tmp_path: Path
) -> None:
    scene = Scene(tmp_path / "t")
    lying = written(scene.root, pa.table({"n": pa.array([1, 2], pa.int32()), "t": ["a", "b"]}))
    change(lying.files[0])
    answer = await scene.commit(append(1, lying), VERIFYING)
    assert isinstance(answer, Refused)
    assert (answer.status, answer.reason) == (Status.INVALID, code)


@pytest.mark.parametrize("size", [1, 2**20])
@pytest.mark.parametrize("operation", ["update", "merge", "delete"])
async def test_a_file_of_the_table_keeps_its_size(operation: str, size: int, tmp_path: Path) -> None:
    """With another size readers can't open the file."""
    scene = Scene(tmp_path / "t")
    written(scene.root, pa.table({"n": [1, 2, 3]}))
    latest = await scene.table().latest()
    assert latest is not None
    (lying,) = latest.part([0]).fragments
    lying.files[0].file_size_bytes = size
    staged = {
        "update": Transaction(update=Transaction.Update(updated_fragments=[lying])),
        "merge": Transaction(merge=Transaction.Merge(fragments=[lying], schema=latest.outline.fields)),
        "delete": Transaction(delete=Transaction.Delete(updated_fragments=[lying])),
    }[operation]
    staged.read_version, staged.uuid = 1, str(uuid4())
    answer = await scene.commit(staged, VERIFYING)
    assert getattr(answer, "reason", "") == ("" if operation == "delete" else "file_size")
    assert lance.dataset(str(scene.root)).to_table().num_rows == 1


async def test_a_file_that_says_nothing_is_taken_as_it_is_described(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    scene.write_version(manifest(fragment(0), version=1))
    many = fragment(0, rows=10_000, name="new")
    scene.path("data/new.lance").write_bytes(bytes(100))
    many.files[0].file_size_bytes = 100
    assert isinstance(await scene.commit(append(1, many), VERIFYING), Prepared)


class Counting(LocalStore):
    """Notes the bytes of each read of a data file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, durable=False)
        self.tails: list[tuple[int, int]] = []
        """Of each call: how many ends were read, and how many bytes of each at most."""
        self.ranges = 0

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        self.tails.append((len(keys), size))
        return await super().get_tails(keys, size=size)

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        self.ranges += 1
        return await super().get_range(key, start, end)


async def test_a_file_with_many_columns_is_read_once_after_the_first_one(tmp_path: Path) -> None:
    """With the latency of an object store, a second request for each file would make commits slower by a half."""
    scene = Scene(tmp_path / "t")
    made = written(scene.root, pa.table({f"column_{one}": pa.array([one], pa.int32()) for one in range(300)}))
    body = scene.path(f"data/{made.files[0].path}").read_bytes()
    keys = [f"data/{number}.lance" for number in range(200)]
    for key in keys:
        scene.path(key).write_bytes(body)
    store = Counting(scene.root)
    fetch = Fetcher(Table(store))

    async def read(*keys: str) -> list[FoundFile | CommitterError | None]:
        store.tails, store.ranges = [], 0
        need = Staged(files=[NamedFile(Location(key), 0) for key in keys], deletion_bytes_max=0)
        (facts,) = await fetch.staged([need])
        return list(facts.files.values())

    (first,) = await read(keys[0])
    assert (store.tails, store.ranges) == ([(1, END_BYTES)], 1)
    assert isinstance(first, FoundFile)
    assert first.said is not None
    assert await read(*keys) == [first] * len(keys)
    assert store.ranges == 0
    assert sum(count for count, _ in store.tails) == len(keys)
    assert all(END_BYTES < size <= END_BYTES_MAX and count * size <= 4 * 1024 * 1024 for count, size in store.tails)
    # Files with few columns are read with less again.
    narrow = written(tmp_path / "narrow", pa.table({"n": [1]}))
    scene.path("data/narrow.lance").write_bytes((tmp_path / "narrow/data" / narrow.files[0].path).read_bytes())
    await read("data/narrow.lance")
    await read("data/narrow.lance")
    assert store.tails == [(1, END_BYTES)]


async def test_files_of_very_many_columns_need_two_requests_each_and_do_not_lengthen_the_first(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    made = written(scene.root, pa.table({f"column_{one}": pa.array([one], pa.int32()) for one in range(3_000)}))
    store = Counting(scene.root)
    fetch = Fetcher(Table(store))
    need = Staged(files=[NamedFile(Location(f"data/{made.files[0].path}"), 0)], deletion_bytes_max=0)
    for _ in range(2):
        await fetch.staged([need])
    assert (store.tails, store.ranges) == ([(1, END_BYTES)] * 2, 2)


@pytest.mark.parametrize(
    ("needed", "read"),
    [
        ([], 125_000),
        ([0, 0], 125_000),
        ([0, 3_000], END_BYTES),
        ([3_000, 40_000], 50_000),
        ([250 * 1024], END_BYTES_MAX),
        ([END_BYTES_MAX, 3_000], END_BYTES_MAX),
        ([40_000, END_BYTES_MAX + 1], 50_000),
        ([10_000_000], END_BYTES),
    ],
)
def test_as_much_is_read_as_the_last_files_have_needed(needed: Sequence[int], read: int) -> None:
    ends = EndBytes()
    ends.note([100_000])
    ends.note(needed)
    assert ends.bytes == read


async def test_files_with_the_same_columns_share_their_fields(tmp_path: Path) -> None:
    """Their schemas differ in metadata, and Lance writes the metadata of a field in any order."""
    scene = Scene(tmp_path / "t")
    described = {name: name * 3 for name in "abcdef"}
    rows = pa.table([[1], ["a"]], pa.schema([pa.field("n", pa.int64(), metadata=described), ("t", pa.string())]))
    keys = []
    for number in range(5):
        one = written(tmp_path / str(number), rows.replace_schema_metadata({"rows": str(number), "x": "y" * number}))
        keys.append(f"data/{number}.lance")
        scene.path(keys[-1]).parent.mkdir(parents=True, exist_ok=True)
        scene.path(keys[-1]).write_bytes((tmp_path / str(number) / "data" / one.files[0].path).read_bytes())
    found = (await said(scene, keys)).values()
    fields = [one.said.fields for one in found if isinstance(one, FoundFile) and one.said is not None]
    assert len(fields) == len(keys)
    assert len({id(one) for one in fields}) == 1
    assert b"int64" in fields[0]


async def test_a_long_descriptor_in_the_end_that_is_read_is_read_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "t")
    rows = pa.table({"n": [1]}).replace_schema_metadata({"pandas": "x" * 90_000})
    made = written(scene.root, rows)
    store = Counting(scene.root)
    fetch = Fetcher(Table(store))
    need = Staged(files=[NamedFile(Location(f"data/{made.files[0].path}"), 0)], deletion_bytes_max=0)
    for _ in range(2):
        (facts,) = await fetch.staged([need])
        (one,) = facts.files.values()
        assert isinstance(one, FoundFile)
        assert one.said is not None
        assert one.said.rows == 1
    (_, first), (_, second) = store.tails
    assert (first, store.ranges) == (END_BYTES, 1)
    assert second > 90_000
