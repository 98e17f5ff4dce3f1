"""Commits a staged transaction to a table in a folder, alone and without a queue."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from committerd.lance.operations.permissions import ANYTHING
from committerd.queue.dedupe import Refused
from committerd.stores.local import LocalStore
from committerd.stores.port import Created, ObjectStore
from committerd.table.case import PrepareOptions, Sources
from committerd.table.prepare import Prepared, create_options, prepare
from committerd.table.versions import Table
from committerd.table.writing import put, write_files
from committerd_common.messages import Transaction


def open_store(uri: str) -> ObjectStore:
    return LocalStore(Path(uri), durable=False)


async def commit_alone(root: Path, staged: Transaction, options: Mapping[str, Any] | None = None) -> Prepared | Refused:
    """Commit it if possible; return the outcome."""
    table = Table(open_store(str(root)))
    answer = await prepare(
        table,
        await table.latest(),
        staged,
        options=PrepareOptions(
            allowed=ANYTHING,
            verify_files=True,
            create=create_options(options or {}),
            copy_clone=True,
        ),
        sources=Sources(
            wall_clock=lambda: datetime.now(UTC),
            random=random.Random(0),
            new_uuid=uuid.uuid4,
        ),
        open_store=open_store,
    )
    if isinstance(answer, Prepared):
        await write_files(table, answer)
        assert isinstance(await put(table, answer), Created)
    return answer
