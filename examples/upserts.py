"""Keep a Lance table equal to a stream of change records, through its queue, while others append to it.

    python examples/upserts.py --bootstrap-servers 127.0.0.1:9092 --dataset users --uri /data/users.lance < changes

Each line is a change, as a change data capture topic has it: `{"id": 7, "name": "Ann"}` sets a row, `{"id": 7, "name":
null}` deletes it. Changes are merged in batches; the last of several changes of a row in a batch counts. The number of
a batch is its app version, so the same input may be read again after a crash: batches that are in the table are not
applied again.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa

from committerd_client import App, SyncCommitClient, WriteResult

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def batches(lines: Iterable[str], size: int) -> Iterator[dict[int, str | None]]:
    """The changes, in batches of `size` lines: the new name by id, None for a row to delete."""
    rest = iter(lines)
    while batch := list(islice(rest, size)):
        changes = map(json.loads, batch)
        yield {change["id"]: change["name"] for change in changes}


def apply(client: SyncCommitClient, changes: dict[int, str | None], unit: App) -> WriteResult:
    """Set rows, or delete rows, in one transaction."""
    if None not in changes.values():
        rows = pa.table({"id": list(changes), "name": list(changes.values())}, schema=SCHEMA)
        return client.upsert(rows, on="id", app=unit, timeout=600)
    keys = pa.table({"id": list(changes)}, schema=pa.schema([SCHEMA.field("id")]))
    return client.merge_insert(keys, on="id", when_matched_delete=True, app=unit, timeout=600)


def parts(changes: dict[int, str | None]) -> Iterator[dict[int, str | None]]:
    """The rows to set, then the rows to delete: one transaction each."""
    for deleting in (False, True):
        part = {key: name for key, name in changes.items() if (name is None) is deleting}
        if part:
            yield part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092", help="Kafka; default %(default)s")
    parser.add_argument("--dataset", required=True, help="name of the dataset, as in the committer's settings")
    parser.add_argument("--uri", required=True, help="where the table is, as in the committer's settings")
    parser.add_argument("--source", default="changes", help="names the input; its batches are counted; %(default)s")
    parser.add_argument("--batch", type=int, default=1000, help="changes in each transaction; default %(default)s")
    chosen = parser.parse_args()
    # The input is read from its beginning each time, so that earlier batches are there already is no surprise.
    logging.getLogger("committerd_client.app_marks").setLevel(logging.ERROR)
    with SyncCommitClient(chosen.bootstrap_servers, dataset=chosen.dataset, dataset_uri=chosen.uri) as client:
        client.create(SCHEMA, exist_ok=True)
        for number, changes in enumerate(batches(sys.stdin, chosen.batch)):
            for half, part in enumerate(parts(changes)):
                # Batch n makes at most two transactions, with app versions 2 n and 2 n + 1.
                result = apply(client, part, App(chosen.source, 2 * number + half))
                status = "in the table already" if result.duplicate else "committed"
                print(f"batch {number}: {status}, version {result.version}, {result.attempts} attempts")


if __name__ == "__main__":
    main()
