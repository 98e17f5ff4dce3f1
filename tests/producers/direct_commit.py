"""Commits staged transactions directly to a table in a folder, by the rules of the queue."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime
from pathlib import Path

from committerd.committer import direct
from committerd.committer.direct import DirectOutcome
from committerd.stores.local import LocalStore
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions, Sources
from committerd.table.prepare import create_options
from committerd.table.versions import Table
from committerd_client import Staged
from committerd_common.messages import Transaction


async def commit(uri: str | Path, given: Staged | Transaction) -> DirectOutcome:
    """Commit it if possible; return the outcome."""
    rng = random.Random(0)
    options = given.create_options if isinstance(given, Staged) else {}
    return await direct.commit(
        Table(LocalStore(Path(uri), durable=False)),
        given.transaction if isinstance(given, Staged) else given,
        options=PrepareOptions(create=create_options(options)),
        sources=Sources(wall_clock=lambda: datetime.now(UTC), random=rng, new_uuid=uuid.uuid4),
        backoff=Backoff(rng),
    )
