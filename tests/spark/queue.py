"""A table, its topics and its committer, as a Spark job uses them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import lance
from kafka import KafkaConsumer, TopicPartition

from committerd_spark import LanceBatchWriter
from harness.child import Launch
from harness.daemon import Daemon
from harness.scene import QUICK


class Queue:
    """Writers made by it are closed with it."""

    def __init__(
        self, *, name: str, kafka: str, folder: Path, launch: Launch, settings: dict[str, str] | None = None
    ) -> None:
        self.name, self.kafka, self.folder = name, kafka, folder
        self.uri = str(folder / f"{name}.lance")
        self.daemon = Daemon(
            name=name,
            uri=self.uri,
            kafka=kafka,
            settings=QUICK | (settings or {}),
            log=folder / "committerd.log",
            launch=launch,
        )
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.daemon)
        self.daemon.wait_line("http.listening")
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def writer(self, **options: Any) -> LanceBatchWriter:
        """A writer of this table."""
        options = {"bootstrap_servers": self.kafka, "timeout": 200.0, **options}
        return self._stack.enter_context(LanceBatchWriter(self.uri, **options))

    def table(self) -> Any:
        """pylance's dataset of the latest version."""
        return lance.dataset(self.uri)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the latest version, in the order of their first column."""
        table = self.table().to_table()
        found: list[dict[str, Any]] = table.sort_by(table.column_names[0]).to_pylist()
        return found

    def column(self, name: str) -> list[Any]:
        """The values of a column, sorted."""
        return sorted(self.table().to_table(columns=[name])[name].to_pylist())

    def versions(self) -> int:
        """The number of the latest version; 0 if there is no table."""
        return max((int(entry["version"]) for entry in self.table().versions()), default=0) if self.exists() else 0

    def wait_staged(self, records: int) -> None:
        """Wait until so many records were staged, whether they have an outcome or not."""
        place = TopicPartition(f"{self.name}.staged", 0)
        with contextlib.closing(KafkaConsumer(bootstrap_servers=self.kafka, enable_auto_commit=False)) as consumer:
            until = time.monotonic() + 60
            while consumer.end_offsets([place])[place] < records:
                assert time.monotonic() < until, f"fewer than {records} records were staged"
                time.sleep(0.05)

    def exists(self) -> bool:
        """Whether there is a table."""
        return any(Path(self.uri, "_versions").glob("*.manifest"))

    def run(self, program: str) -> dict[str, Any]:
        """Run a program of a page with addresses that exist; returns its names."""
        table = re.sub(r"s3://lake/\w+\.lance", self.uri, program)
        placed = table.replace("s3://lake", str(self.folder)).replace("/checkpoints", str(self.folder / "checkpoints"))
        names: dict[str, Any] = {}
        exec(placed.replace("broker1:9092", self.kafka), names)
        return names

    def command(self, *words: str) -> str:
        """Run `committerd` with this table's settings; returns its output."""
        done = subprocess.run(
            [sys.executable, "-m", "committerd", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=self.daemon.environment | {"PATH": os.environ["PATH"]},
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout
