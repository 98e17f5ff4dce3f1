"""A table in a directory bucket of S3 Express, which committerd and pylance read and write."""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import lance
import pyarrow as pa
import pytest

from committerd.committer import direct
from committerd.errors import PutUnknown
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.stores.open import Stores
from committerd.stores.port import Created, Exists, ObjectStore
from committerd.stores.probing import probe
from committerd.table.backoff import Backoff
from committerd.table.versions import Table
from committerd_common.messages import Transaction
from committerd_common.paths import VERSION_HINT, NamingScheme, manifest_key
from harness.directory_buckets import DirectoryBuckets
from harness.fault_proxy import DROP_ANSWER, Fault, Seen, answer
from harness.lance_table import run_in_4
from harness.s3 import S3Endpoint
from tests.stores.s3_stores import settings_of
from tests.table.scene import ANY, sources

pytestmark = pytest.mark.s3

_APPEND_IN_4 = """
import json, sys, lance, pyarrow
uri, options = sys.argv[1], json.loads(sys.argv[2])
lance.write_dataset(pyarrow.table({"id": [4]}), uri, storage_options=options, mode="append")
print(json.dumps([lance.__version__, lance.dataset(uri, storage_options=options).version]))
"""
_HINT = re.escape(VERSION_HINT)


@pytest.fixture
def uri(directory_buckets: DirectoryBuckets) -> str:
    return f"s3://{directory_buckets.make_bucket()}/lake/table.lance"


@pytest.fixture
def options(directory_buckets: DirectoryBuckets) -> dict[str, str]:
    return directory_buckets.storage_options()


@pytest.fixture
async def store(s3: S3Endpoint, directory_buckets: DirectoryBuckets, uri: str) -> AsyncIterator[ObjectStore]:
    settings = settings_of(s3.through(directory_buckets.url), attempts=2)
    async with Stores(settings, DynamoDBSettings()) as stores:
        opened = stores.open(uri)
        assert opened.lists_whole_folders  # as only the store of a directory bucket does
        yield opened


def key(version: int) -> str:
    return manifest_key(version, NamingScheme.V2)


def shown(seen: Sequence[Seen]) -> list[str]:
    """Each request: its method, and its key below the table or `list`."""
    return [
        f"{one.method} {'list' if 'list-type' in one.path else one.path.partition('table.lance/')[2]}" for one in seen
    ]


async def commit(table: Table) -> int:
    """Commit a change of the table's configuration; returns the version."""
    latest = await table.latest()
    assert latest is not None
    staged = Transaction(uuid=str(uuid.uuid4()), read_version=latest.version)
    staged.update_config.config_updates.update_entries.add(key="k", value="v")
    done = await direct.commit(
        table,
        staged,
        options=ANY,
        sources=sources(),
        open_store=lambda _: table.store,
        backoff=Backoff(random.Random(0)),
    )
    assert done.version is not None
    return done.version


async def test_the_store_is_proved(store: ObjectStore) -> None:
    checks = await probe(store, now=datetime.now(UTC), new_uuid=uuid.uuid4)
    assert [check.fault for check in checks] == [""] * 5


async def test_a_session_is_used_while_it_is_valid_and_renewed_before_it_ends(s3: S3Endpoint) -> None:
    for seconds, renewed in ((3600, False), (20, True)):  # the SDK renews a session that ends within 45 s
        with DirectoryBuckets(s3, session_seconds=seconds) as proxy:
            async with Stores(settings_of(s3.through(proxy.url)), DynamoDBSettings()) as stores:
                opened = stores.open(f"s3://{proxy.make_bucket()}/t")
                await opened.put("o", b"body")
                for _ in range(5):
                    assert await opened.get("o") == b"body"
            asked = sum(one.path.endswith("?session") for one in proxy.seen)
        assert asked > 5 if renewed else asked == 1


async def test_no_session_is_a_failure_like_any_other(s3: S3Endpoint) -> None:
    with DirectoryBuckets(s3) as proxy:
        async with Stores(settings_of(s3.through(proxy.url)), DynamoDBSettings()) as stores:
            opened = stores.open(f"s3://{proxy.make_bucket()}/t")
            fault = proxy.fault(answer(503), path=r"\?session$", times=2)
            with pytest.raises(PutUnknown):
                await opened.put_if_absent("o", b"body")
            assert await opened.get("o") is None
            assert fault.hits == 2
            assert await opened.put_if_absent("o", b"body") == Created()


async def test_a_created_manifest_and_nothing_else_is_followed_by_the_hint(
    store: ObjectStore, directory_buckets: DirectoryBuckets
) -> None:
    before = len(directory_buckets.seen)
    assert await store.put_if_absent(key(7), b"manifest") == Created()
    sent = [one for one in shown(directory_buckets.seen[before:]) if one.startswith("PUT")]
    assert sent == [f"PUT {key(7)}", f"PUT {VERSION_HINT}"]
    assert await store.get(VERSION_HINT) == b'{"version":7}'
    await store.put(VERSION_HINT, b"outdated")
    assert await store.put_if_absent(key(7), b"another") == Exists()
    for other in (f"_versions/d{2**63 + 1}.manifest", "_versions/x", "x/7.manifest"):
        assert await store.put_if_absent(other, b"") == Created()
    assert await store.get(VERSION_HINT) == b"outdated"


@pytest.mark.parametrize("fault", [answer(503), answer(409), DROP_ANSWER], ids=lambda fault: fault.name)
async def test_a_commit_holds_without_its_hint(
    store: ObjectStore, directory_buckets: DirectoryBuckets, fault: Fault
) -> None:
    rule = directory_buckets.fault(fault, method="PUT", path=_HINT)
    assert await store.put_if_absent(key(7), b"manifest") == Created()
    assert rule.hits == 1
    assert await store.get(key(7)) == b"manifest"


@pytest.mark.pylance
async def test_pylance_finds_what_is_committed_by_the_hint_and_commits_in_between(
    store: ObjectStore, directory_buckets: DirectoryBuckets, uri: str, options: dict[str, str]
) -> None:
    table, rows = Table(store), pa.table({"id": [1]})
    opened = lance.write_dataset(rows, uri, storage_options=options)
    for version in range(2, 12, 2):
        assert await commit(table) == version
        before = len(directory_buckets.seen)
        opened = lance.dataset(uri, storage_options=options)
        found = shown(directory_buckets.seen[before:])
        assert (opened.version, "GET list" in found, f"HEAD {key(version)}" in found) == (version, False, True)
        assert lance.write_dataset(rows, opened, storage_options=options, mode="append").version == version + 1
        before = len(directory_buckets.seen)
        assert await table.latest_version(recent=version) == version + 1
        assert set(shown(directory_buckets.seen[before:])) == {f"HEAD {key(version + one)}" for one in (1, 2, 3)}
    assert lance.dataset(uri, storage_options=options).count_rows() == 6
    assert await table.versions() == [*range(1, 12)]


@pytest.mark.pylance
@pytest.mark.parametrize("hint", [b"", b"{", b'{"version":2}', b'{"version":99}'])
async def test_no_hint_leads_us_or_pylance_astray(
    store: ObjectStore, uri: str, options: dict[str, str], hint: bytes
) -> None:
    for mode in ("create", "append", "append", "append"):
        lance.write_dataset(pa.table({"id": [1]}), uri, storage_options=options, mode=mode)
    await store.put(VERSION_HINT, hint)
    assert await commit(Table(store)) == 5
    assert lance.dataset(uri, storage_options=options).version == 5
    assert await store.get(VERSION_HINT) == b'{"version":5}'


@pytest.mark.pylance
async def test_pylance_4_reads_and_writes_and_leaves_the_hint_outdated(
    store: ObjectStore, uri: str, options: dict[str, str]
) -> None:
    lance.write_dataset(pa.table({"id": [1]}), uri, storage_options=options)
    assert await commit(Table(store)) == 2
    assert run_in_4(_APPEND_IN_4, uri, json.dumps(options)) == ["4.0.0", 3]
    assert await store.get(VERSION_HINT) == b'{"version":2}'
    assert lance.dataset(uri, storage_options=options).version == 3
    # A cleanup that deletes version 3 and leaves the tagged version 2 makes the hint wrong, but for us.
    assert run_in_4(_APPEND_IN_4, uri, json.dumps(options)) == ["4.0.0", 4]
    await store.delete(key(3))
    assert lance.dataset(uri, storage_options=options).version == 2
    assert await commit(Table(store)) == 5
    assert lance.dataset(uri, storage_options=options).version == 5
