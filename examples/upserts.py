"""Keep a Lance table equal to a stream of change records, through its queue, while others append to it.

    python examples/upserts.py --bootstrap-servers 127.0.0.1:9092 --dataset users --uri /data/users.lance < changes

Each line is a change, as a change data capture topic has it: `{"id": 7, "name": "Ann"}` sets a row, `{"id": 7, "name":
null}` deletes it. Changes are merged in batches; the last of several changes of a row in a batch counts. The number of
a batch is its app version, so the same input may be read again after a crash: batches that are in the table get
DUPLICATE, and no change is made twice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

import lance
import pyarrow as pa

from committerd_client import App, Reexecution, RetryableConflict, Staged, SyncCommitClient, staging

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def create_table(client: SyncCommitClient) -> None:
    """Create the table, unless another process has created it."""
    try:
        client.commit(staging.create([], SCHEMA))
    except RetryableConflict as conflict:
        if conflict.code != "table_exists":
            raise


def batches(lines: Iterable[str], size: int) -> Iterator[dict[int, str | None]]:
    """The changes, in batches of `size` lines: the new name by id, None for a row to delete."""
    rest = iter(lines)
    while batch := list(islice(rest, size)):
        changes = map(json.loads, batch)
        yield {change["id"]: change["name"] for change in changes}


def merge(uri: str, changes: dict[int, str | None], again: Reexecution | None) -> Staged:
    """The merge that applies these changes to the table's latest version: rows to set, or rows to delete.

    `again`: None at first. After a refusal the merge reads only the rows that were appended since.
    """
    table = lance.dataset(uri)
    if None not in changes.values():
        rows = pa.table({"id": list(changes), "name": list(changes.values())}, schema=SCHEMA)
        return staging.merge_insert(table, rows, on="id", again=again)
    return staging.merge_insert(
        table,
        pa.table({"id": list(changes)}, schema=pa.schema([SCHEMA.field("id")])),
        on="id",
        when_matched_update_all=False,
        when_matched_delete=True,
        when_not_matched_insert_all=False,
        again=again,
    )


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
    with SyncCommitClient(chosen.bootstrap_servers, dataset=chosen.dataset, dataset_uri=chosen.uri) as client:
        create_table(client)
        for number, changes in enumerate(batches(sys.stdin, chosen.batch)):
            for half, part in enumerate(parts(changes)):

                def execute(again: Reexecution | None = None, part: dict[int, str | None] = part) -> Staged:
                    return merge(chosen.uri, part, again)

                # Batch n makes at most two transactions, with app versions 2 n and 2 n + 1.
                unit = App(chosen.source, 2 * number + half)
                result = client.commit(execute(), app=unit, reexecute=execute, timeout=600)
                print(f"batch {number}: {result.status}, version {result.version}, {result.attempts} attempts")


if __name__ == "__main__":
    main()
