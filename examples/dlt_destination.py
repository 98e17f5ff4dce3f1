"""A destination of dlt that writes the tables of a pipeline into Lance tables through their queues, each load once.

    python examples/dlt_destination.py --bootstrap-servers 127.0.0.1:9092 --folder /data --table users \\
        --mode merge --keys id < users.jsonl

`committerd` below is the destination, which any pipeline may name. dlt keeps a load in its working folder until all of
its files are loaded, and loads them again after a crash. All files of one table are one transaction here, and its unit
of work is dlt's load id, so the table has the rows of a load once however often dlt repeats it.
"""

from __future__ import annotations

import argparse
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import dlt
import lance
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from dlt.destinations.exceptions import DestinationTerminalException

from committerd_client import (
    App,
    IncompatibleConflict,
    InvalidTransaction,
    StagingError,
    SyncCommitClient,
    UnsupportedTransaction,
)

FINAL = (IncompatibleConflict, InvalidTransaction, StagingError, UnsupportedTransaction)
"""To do the same again can't help. dlt repeats a load after any other error."""


def commit_load(
    file: str, table: Any, folder: str = dlt.config.value, bootstrap_servers: str = dlt.config.value
) -> None:
    """Commit what this load has of a table, of which `file` is a part, unless an earlier job has done so."""
    package = Path(file).parents[1]
    # Its files, whichever of them are done. dlt's names: TABLE.ID.RETRIES.parquet
    files = [path for path in sorted(package.glob("*_jobs/*.parquet")) if path.name.split(".")[0] == table["name"]]
    # dlt loads in the order of these ids, which are Unix time in seconds with a fraction.
    unit = App(f"dlt.{dlt.current.pipeline().pipeline_name}", int(Decimal(package.name) * 1_000_000))
    uri = f"{folder}/{table['name']}.lance"
    try:
        with SyncCommitClient(bootstrap_servers, dataset_uri=uri, producer="dlt", timeout=600) as client:
            result = write(client, files, table, uri=uri, unit=unit)
    except FINAL as error:
        raise DestinationTerminalException(f"{uri}: {error}") from error
    if result.duplicate and result.version is None:
        raise DestinationTerminalException(
            f"{uri} has a later load of {unit.app_id}, so load {package.name} is not added"
        )


# A job for each file, with its path, and never two for a table at the same time: no file of the table moves meanwhile.
committerd = dlt.destination(
    name="committerd", batch_size=0, loader_file_format="parquet", loader_parallelism_strategy="table-sequential"
)(commit_load)


def write(client: SyncCommitClient, files: list[Path], table: Any, *, uri: str, unit: App) -> Any:
    """Append, merge or replace, as the table's write disposition says."""
    columns = table["columns"]
    there = pa.unify_schemas([pq.read_schema(path) for path in files])
    rows = ds.dataset(files, schema=pa.schema([field for field in there if field.name in columns]), format="parquet")
    if table["write_disposition"] == "replace":
        return client.overwrite(rows, app=unit)
    add_new_columns(client, uri, rows.schema)
    if table["write_disposition"] == "append":
        return client.append(rows, create=True, app=unit)
    keys = [name for name, hints in columns.items() if hints.get("primary_key")]
    if not keys or table.get("x-merge-strategy", "upsert") not in ("delete-insert", "upsert"):
        raise StagingError("a merge needs a primary_key, and has the strategy upsert")
    if any(hints.get("hard_delete") for hints in columns.values()):
        raise StagingError("hard_delete is not served")
    return client.upsert(last_of_each(rows.to_table(), keys, columns), on=keys, create=True, app=unit)


def add_new_columns(client: SyncCommitClient, uri: str, schema: Any) -> None:
    """Add the columns that the table lacks, since the source may have new ones at any time."""
    try:
        known = lance.dataset(uri).schema
    except ValueError:  # there is no table yet: the first rows create it
        return
    new = [field for field in schema if field.name not in known.names]
    if new:
        client.add_columns(pa.schema(new))


def last_of_each(rows: Any, keys: list[str], columns: Any) -> Any:
    """A row of each key, because a merge takes no two: the one that the hint `dedup_sort` prefers."""
    order = [(name, hints["dedup_sort"]) for name, hints in columns.items() if hints.get("dedup_sort")]
    if order:
        rows = rows.sort_by([(name, "ascending" if first == "desc" else "descending") for name, first in order])
    places = {key: place for place, key in enumerate(zip(*(rows[name].to_pylist() for name in keys), strict=True))}
    return rows.take(sorted(places.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092", help="Kafka; default %(default)s")
    parser.add_argument("--folder", required=True, help="where the tables are, each as TABLE.lance")
    parser.add_argument("--pipeline", default="lines", help="dlt's name of the pipeline; default %(default)s")
    parser.add_argument("--table", required=True, help="name of the table, and of its queue")
    parser.add_argument("--mode", default="append", choices=["append", "merge", "replace"])
    parser.add_argument("--keys", nargs="*", default=[], help="columns by which a merge finds rows")
    chosen = parser.parse_args()

    lines = dlt.resource(
        (json.loads(line) for line in sys.stdin),
        name=chosen.table,
        write_disposition=chosen.mode,
        primary_key=chosen.keys or None,
    )
    destination = committerd(folder=chosen.folder, bootstrap_servers=chosen.bootstrap_servers)
    # If an earlier run was interrupted, dlt first ends that load, and leaves the new rows to the next run.
    print(dlt.pipeline(chosen.pipeline, destination=destination).run(lines))


if __name__ == "__main__":
    main()
