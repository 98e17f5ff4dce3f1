"""Commits through a real queue, with nothing installed but the client; prints the results as one line of JSON.

    python commit.py BOOTSTRAP_SERVERS DATASET URI NAME [--pylance]

It makes the table if there is none. It writes NAME into the table's metadata twice, under one uuid. With `--pylance` it
appends rows and updates one of them, which takes every kind of file that staging helpers make of rows.
"""

from __future__ import annotations

import json
import sys
import uuid

from committerd_client import RetryableConflict, Staged, SyncCommitClient
from committerd_common.messages import Field, Transaction


def make_table(client: SyncCommitClient) -> None:
    transaction = Transaction(uuid=str(uuid.uuid4()))
    columns = [("name", "string"), ("number", "int64")]
    transaction.overwrite.schema.extend(
        Field(name=name, id=place, parent_id=-1, logical_type=kind, nullable=True)
        for place, (name, kind) in enumerate(columns)
    )
    try:
        client.commit(
            Staged(transaction=transaction, create_only=True, create_options={"enable_stable_row_ids": True}),
            timeout=90,
        )
    except RetryableConflict as conflict:
        if conflict.code != "table_exists":
            raise


def note(client: SyncCommitClient, name: str) -> list[str]:
    """Statuses of a transaction that is committed twice."""
    transaction = Transaction(uuid=str(uuid.uuid4()), read_version=1)
    entry = transaction.update_config.table_metadata_updates.update_entries.add()
    entry.key, entry.value = f"committed-by.{name}", name
    return [str(client.commit(transaction, timeout=90).status) for _ in range(2)]


def change_rows(client: SyncCommitClient, uri: str, name: str) -> list[int]:
    """Append three rows, one of them with one call, and change one; returns the numbers of this program's rows."""
    import lance
    import pyarrow as pa
    from lance.fragment import write_fragments

    from committerd_client import staging

    dataset = lance.dataset(uri)
    rows = pa.table({"name": [name] * 2, "number": pa.array([1, 2], pa.int64())})
    client.commit(staging.append(write_fragments(rows, dataset, mode="append"), dataset=dataset), timeout=90)

    def add_ten(_refused: object = None) -> Staged:
        return staging.update(lance.dataset(uri), {"number": "number + 10"}, where=f"name = '{name}' AND number = 2")

    client.append([{"number": 3, "name": name}], timeout=90)
    client.commit(add_ten(), reexecute=add_ten, attempts=10, timeout=90)
    found = lance.dataset(uri).to_table(filter=f"name = '{name}'")
    return sorted(found.column("number").to_pylist())


def main() -> None:
    kafka, dataset, uri, name = sys.argv[1:5]
    done: dict[str, object] = {}
    with SyncCommitClient(kafka, dataset=dataset, dataset_uri=uri) as client:
        make_table(client)
        done["statuses"] = note(client, name)
        if "--pylance" in sys.argv:
            done["numbers"] = change_rows(client, uri, name)
    done["modules"] = sorted(one for one in sys.modules if "." not in one)
    print(json.dumps(done))


if __name__ == "__main__":
    main()
