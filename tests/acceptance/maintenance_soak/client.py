"""A writer in a process of its own, to be killed.

    python -m tests.acceptance.maintenance_soak.client KAFKA DATASET URI FIRST END NOTES

It appends rows with ids from FIRST to END, one batch after the other, and notes each batch in the file NOTES, before it
writes the data file (`begins ID`) and after its outcome (`committed ID`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from lance.fragment import write_fragments

from committerd_client import SyncCommitClient, staging
from tests.acceptance.maintenance_soak.table import STORAGE, rows

BATCH = 5
"""Rows of one batch, with ids that follow each other, and the value 0."""


def main() -> None:
    """Append until it is killed, or has no ids left."""
    kafka, dataset, uri, first, end, notes = sys.argv[1:]
    with (
        Path(notes).open("a", encoding="utf-8", buffering=1) as noted,
        SyncCommitClient(kafka, dataset=dataset, dataset_uri=uri, timeout=120) as client,
    ):
        for number in range(int(first), int(end) - BATCH, BATCH):
            noted.write(f"begins {number}\n")
            given = rows(dict.fromkeys(range(number, number + BATCH), 0))
            fragments = write_fragments(given, uri, mode="append", data_storage_version=STORAGE)
            client.commit(staging.append(fragments))
            noted.write(f"committed {number}\n")


def batches(notes: Path) -> tuple[set[int], set[int]]:
    """The first ids of the batches that were committed, and of those of which it is not known."""
    begun: set[int] = set()
    committed: set[int] = set()
    for line in notes.read_text(encoding="utf-8").splitlines() if notes.exists() else ():
        word, _, number = line.partition(" ")
        (committed if word == "committed" else begun).add(int(number))
    return committed, begun - committed


if __name__ == "__main__":
    main()
