"""Clients that upsert the same new keys at the same time: how many keys does the table hold more than once?

    python -m bench.same_new_keys

Six processes each perform 15 upserts of 20 rows, one after the other. The n-th upsert of each has the same 20 keys,
which the table does not have. First each process calls `merge_insert(...).execute(...)` of pylance, on a table that it
opens for each call. Then each calls `client.upsert(...)`, with a committer and a Kafka of this machine
(`KAFKA_BOOTSTRAP_SERVERS`, or one that is started). A table without an unenforced primary key, as most are.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lance
import pyarrow as pa

from committerd_client import SyncCommitClient
from harness.kafka import kafka_broker
from harness.scene import Scene

CLIENTS, UPSERTS, ROWS = 6, 15, 20


def rows(number: int) -> pa.Table:
    """The rows of the n-th upsert of each client."""
    return pa.table({"id": range(number * ROWS, (number + 1) * ROWS)})


def with_pylance(uri: str) -> None:
    """The upserts of one client, by pylance alone."""
    for number in range(UPSERTS):
        merge = lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(rows(number))


def with_committerd(uri: str, *, kafka: str, name: str, upserts: int = UPSERTS) -> None:
    """The upserts of one client, through the queue."""
    with SyncCommitClient(kafka, dataset=name, dataset_uri=uri) as client:
        for number in range(upserts):
            client.upsert(rows(number), on="id")


def twice(
    uri: str, client: Callable[[str], None], *, clients: int = CLIENTS, upserts: int = UPSERTS
) -> tuple[int, int]:
    """Run the clients at once on a new table; returns (keys that are there more than once, all keys). `upserts`: those
    of each client.
    """
    lance.write_dataset(rows(0).slice(0, 0), uri)
    spawned = multiprocessing.get_context("spawn")
    running = [spawned.Process(target=client, args=(uri,)) for _ in range(clients)]
    for process in running:
        process.start()
    for process in running:
        process.join()
    assert all(process.exitcode == 0 for process in running), "a client failed"
    found = Counter(lance.dataset(uri).to_table()["id"].to_pylist())
    assert len(found) == upserts * ROWS, "a key is missing"
    return sum(count > 1 for count in found.values()), len(found)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, kafka_broker() as kafka:
        print("pylance: {} of {} keys more than once".format(*twice(f"{folder}/direct.lance", with_pylance)))
        name = f"same-new-keys-{uuid.uuid4().hex[:8]}"
        with Scene(kafka=kafka.bootstrap_servers, name=name, folder=Path(folder)) as scene:
            queued = partial(with_committerd, kafka=kafka.bootstrap_servers, name=name)
            scene.daemon()
            print("committerd: {} of {} keys more than once".format(*twice(scene.table.uri, queued)))


if __name__ == "__main__":
    main()
