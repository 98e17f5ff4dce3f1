"""The contract of every object store (`committerd.stores.port.ObjectStore`)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from committerd.stores.port import Created, Exists, ObjectStore, Tail
from committerd_common.paths import VERSION_HINT
from harness.directory_buckets import DirectoryBuckets
from harness.dynamodb import DynamoDBEndpoint
from harness.s3 import S3Endpoint
from tests.contracts.places import close, open_store, race

ROOT = Path(__file__).resolve().parents[2]
RACED_KEYS = [f"_versions/{number}.manifest" for number in range(30)]


ON_DISK = ["local", "local-not-durable", "measured-local"]
_BUCKETS: dict[str, str] = {}
"""One bucket for all tests of a server: making one takes longer than most of them."""
ON_S3 = [
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("minio", marks=pytest.mark.s3),
    pytest.param("s3-express", marks=pytest.mark.s3),
    pytest.param("s3+ddb", marks=[pytest.mark.s3, pytest.mark.dynamodb]),
]


@pytest.fixture(params=[*ON_DISK, "local+entries", "memory", *ON_S3])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    kind, _, entries = request.param.partition("+")
    if kind not in ("s3", "minio", "s3-express"):
        return f"{request.param}:{tmp_path / 'a table.lance'}"
    endpoint: S3Endpoint = request.getfixturevalue("minio" if kind == "minio" else "s3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", endpoint.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", endpoint.secret_key)
    if endpoint.url not in _BUCKETS:
        _BUCKETS[endpoint.url] = endpoint.make_bucket()
    url, bucket = endpoint.url, _BUCKETS[endpoint.url]
    if kind == "s3-express":
        proxy: DirectoryBuckets = request.getfixturevalue("directory_buckets")
        url, bucket = proxy.url, proxy.named(bucket)
    objects = f"{request.param}:{url}|{bucket}|{tmp_path.name}/a table.lance/"
    if not entries:
        return objects
    dynamodb: DynamoDBEndpoint = request.getfixturevalue("dynamodb")
    return f"{objects}||{dynamodb.url}|{dynamodb.make_table()}|{tmp_path.name}/a table.lance"


@pytest.fixture
async def store(place: str) -> AsyncIterator[ObjectStore]:
    store = open_store(place)
    yield store
    await close(store)


async def manifests(store: ObjectStore) -> list[str]:
    """The keys in the folder of versions, without the hint beside them."""
    return [key for key in await store.list("_versions/") if key != VERSION_HINT]


async def test_an_object_is_read_as_it_was_put(store: ObjectStore) -> None:
    for body in (b"", b"manifest", bytes(range(256)) * 5000):
        await store.put("data/a.lance", body)
        assert await store.get("data/a.lance") == body
        assert await store.head("data/a.lance") == len(body)


async def test_what_is_not_there_is_none(store: ObjectStore) -> None:
    for key in ("nothing", "no/such/folder/at all"):
        assert await store.get(key) is None
        assert await store.get_range(key, 0, 10) is None
        assert await store.get_tail(key, 10) is None
        assert await store.head(key) is None


async def test_a_folder_is_no_object(store: ObjectStore) -> None:
    await store.put("data/a.lance", b"body")
    assert await store.get("data") is None
    assert await store.get_tail("data", 10) is None
    assert await store.head("data") is None
    assert await store.get("data/a.lance/below") is None


@pytest.mark.parametrize(
    ("start", "end", "body"),
    [(0, 10, b"0123456789"), (3, 5, b"34"), (8, 99, b"89"), (10, 12, b""), (4, 4, b"")],
)
async def test_a_range_is_half_open_and_ends_with_the_object(
    store: ObjectStore, start: int, end: int, body: bytes
) -> None:
    await store.put("o", b"0123456789")
    assert await store.get_range("o", start, end) == body


async def test_a_tail_tells_the_size_of_the_whole(store: ObjectStore) -> None:
    await store.put("o", b"0123456789")
    assert await store.get_tail("o", 4) == Tail(body=b"6789", size=10)
    assert await store.get_tail("o", 10) == Tail(body=b"0123456789", size=10)
    assert await store.get_tail("o", 4096) == Tail(body=b"0123456789", size=10)
    await store.put("o", b"")
    assert await store.get_tail("o", 4) == Tail(body=b"", size=0)


async def test_put_replaces(store: ObjectStore) -> None:
    await store.put("o", b"a long first body")
    await store.put("o", b"second")
    assert await store.get("o") == b"second"


async def test_put_if_absent_never_replaces(store: ObjectStore) -> None:
    assert await store.put_if_absent("_versions/1.manifest", b"first") == Created()
    for _ in range(2):
        assert await store.put_if_absent("_versions/1.manifest", b"second") == Exists()
    assert await store.get("_versions/1.manifest") == b"first"
    assert await manifests(store) == ["_versions/1.manifest"]


async def test_put_if_absent_respects_a_put(store: ObjectStore) -> None:
    await store.put("o", b"first")
    assert await store.put_if_absent("o", b"second") == Exists()
    assert await store.get("o") == b"first"


async def test_of_several_the_ends_are_those_of_each(store: ObjectStore) -> None:
    for key, body in (("a/1", b"12345"), ("a/2", b""), ("b/3", b"123")):
        await store.put(key, body)
    keys = ["a/1", "a/none", "b/3", "a/2"]
    found = await store.get_tails(keys, size=3)
    assert list(found) == [await store.get_tail(key, 3) for key in keys]
    assert list(found)[:3] == [Tail(body=b"345", size=5), None, Tail(body=b"123", size=3)]


async def test_list_gives_the_keys_directly_below_in_the_order_of_their_bytes(
    store: ObjectStore,
) -> None:
    names = ["b", "a", "a.b", "a b", "Z", "100%", "10", "9", "ä", "\U0001f600", "\uffee", ".hidden"]
    for name in names:
        await store.put(f"_versions/{name}", b"")
    for other in ("_versions2/x", "x", "_versions/below/x"):
        await store.put(other, b"")

    keys = [f"_versions/{name}" for name in sorted(names, key=str.encode)]
    assert await store.list("_versions/") == keys
    assert await store.list("_versions/", start_after=keys[3]) == keys[4:]
    assert await store.list("_versions/", start_after="_versions/a.", limit=2) == [
        "_versions/a.b",
        "_versions/b",
    ]
    assert await store.list("_versions/", limit=3) == keys[:3]
    assert await store.list("_versions/", start_after=keys[-1]) == []
    assert await store.list("_transactions/") == []
    assert await store.list("") == ["x"]


async def test_copy_replaces_its_target(store: ObjectStore) -> None:
    body = bytes(3_000_000)
    await store.put("_versions/staged", body)
    await store.put("final/o", b"old")
    assert await store.copy("_versions/staged", "final/o")
    assert await store.get("final/o") == body
    assert await store.get("_versions/staged") == body


async def test_copy_without_a_source_changes_nothing(store: ObjectStore) -> None:
    await store.put("final/o", b"old")
    assert not await store.copy("missing", "final/o")
    assert await store.get("final/o") == b"old"


async def test_a_deleted_object_is_gone_and_its_key_free(store: ObjectStore) -> None:
    await store.put("o", b"first")
    await store.delete("o")
    await store.delete("o")
    assert await store.get("o") is None
    assert await store.list("") == []
    assert await store.put_if_absent("o", b"second") == Created()


def raced_keys(place: str) -> list[str]:
    """Fewer keys where one put takes several requests."""
    return RACED_KEYS[:5] if place.startswith(("s3+ddb", "s3-express")) else RACED_KEYS


async def test_of_16_tasks_one_wins_each_key(place: str) -> None:
    winners: dict[str, list[str]] = {}
    stores = [open_store(place) for _ in range(4)]

    async def run(tag: str, store: ObjectStore) -> None:
        winners[tag] = await race(store, tag, raced_keys(place))

    async with anyio.create_task_group() as tasks:
        for number in range(16):
            tasks.start_soon(run, f"task{number}", stores[number % len(stores)])
    for store in stores:
        await close(store)
    await check_winners(place, winners)


@pytest.mark.parametrize("place", [*ON_DISK, *ON_S3[:2]], indirect=True)
def test_of_4_processes_one_wins_each_key(place: str) -> None:
    command = [sys.executable, "-m", "tests.contracts.places", place]
    with ExitStack() as running:
        children = {
            tag: running.enter_context(
                subprocess.Popen(
                    [*command, tag, *RACED_KEYS],
                    cwd=ROOT,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for tag in ("one", "two", "three", "four")
        }
        for child in children.values():
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children.values():
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        winners = {tag: json.loads(child.communicate()[0]) for tag, child in children.items()}
    anyio.run(check_winners, place, winners)


async def check_winners(place: str, winners: dict[str, list[str]]) -> None:
    assert Counter(key for keys in winners.values() for key in keys) == Counter(raced_keys(place))
    store = open_store(place)
    for tag, keys in winners.items():
        for key in keys:
            assert await store.get(key) == f"{tag} {key}".encode()
    assert await manifests(store) == sorted(raced_keys(place))
    await close(store)


async def test_a_reader_sees_one_put_or_the_other_whole(place: str, store: ObjectStore) -> None:
    bodies = [b"a" * 300_000, b"b" * 700_001]
    await store.put("o", bodies[0])
    reader = open_store(place)
    seen: list[bytes | None] = []

    async def replace() -> None:
        number = 0
        while number < 20 or len(seen) < 2:
            await store.put("o", bodies[number % 2])
            number += 1
        tasks.cancel_scope.cancel()

    async def read() -> None:
        while True:
            seen.append(await reader.get("o"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(replace)
        tasks.start_soon(read)
    await close(reader)
    assert all(body in bodies for body in seen)


async def test_a_walk_finds_all_objects_below_a_folder(store: ObjectStore) -> None:
    bodies = {"data/a.lance": b"12345", "data/a/b.blob": b"1", "data/a/c/d.blob": b"", "database.lance": b"12"}
    before = time.time() * 1000
    for key, body in bodies.items():
        await store.put(key, body)
    found = {one.key: one for batch in [batch async for batch in store.walk("data/")] for one in batch}
    assert {key: one.size for key, one in found.items()} == {
        key: len(body) for key, body in bodies.items() if key.startswith("data/")
    }
    assert all(abs(one.modified_ms - before) < 60_000 for one in found.values())
    assert [one async for batch in store.walk("nothing/") for one in batch] == []
