"""What is done to which dataset, as the processes of a load get it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

from committerd_client import CommitClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load."""

    upserts: int
    upserters: int
    """Tasks that each perform one upsert after the other, on keys of their own."""
    appends_per_second: int
    names_keys: bool = False
    """Whether the Appends name their keys, so that the upserts pass them."""
    shares_row: bool = False
    """Whether each upsert also changes the row with key `SHARED`, so that any two of them conflict."""
    keys_each: int = 5
    attempts_max: int = 20
    timeout: float = 120.0
    ahead: int = 500
    """Appends whose files are written before the first upsert; the others are written during the run."""
    compact_seconds: float | None = None
    """Seconds between two compactions; None = there are none."""
    compact_rows: int = 10_000
    """Rows of a fragment that compactions leave alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The table and its queue."""

    servers: str
    """Kafka's bootstrap servers."""
    name: str
    uri: str

    def client(self, **options: Any) -> CommitClient:
        """A client of it."""
        return CommitClient(self.servers, dataset=self.name, dataset_uri=self.uri, **options)


def to_arguments(dataset: Dataset, load: Load) -> list[str]:
    """The arguments of a process."""
    return [json.dumps(asdict(dataset)), json.dumps(asdict(load))]


def from_arguments() -> tuple[Dataset, Load]:
    """Those that this process was started with."""
    dataset, load = map(json.loads, sys.argv[1:])
    return Dataset(**dataset), Load(**load)
