"""Append the result of a task of Airflow to a Lance table through its queue. Each run's rows arrive once.

    export COMMITTERD_SERVERS=127.0.0.1:9092 EVENTS_URI=/data/events.lance
    airflow dags test events 2026-11-01

Copy `append_once` into a DAG of your own. Airflow tries a task again after a crash of its worker or a time-out, when
rows of the first try may be in the table, or still on their way. The unit of work is the task in its run, in whichever
try, so the table takes the rows of one try only.
"""

from __future__ import annotations

import hashlib
import os
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from committerd_client import (
    App,
    IncompatibleConflict,
    InvalidTransaction,
    StagingError,
    SyncCommitClient,
    UnsupportedTransaction,
)

FINAL = (IncompatibleConflict, InvalidTransaction, StagingError, UnsupportedTransaction)
"""To do the same again can't help, so Airflow shall not try it again."""


def unit_of_task() -> App:
    """The unit of work of the running task: the same in each of its tries, another one in each run."""
    context = get_current_context()
    running = context["ti"]
    run = context.get("logical_date") or running.run_id  # a run that an asset has triggered has no date
    name = f"{running.dag_id}.{running.task_id}.{run}.{running.map_index}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return App(f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:100]}.{digest}", 1)


def append_once(rows: Any, uri: str, bootstrap_servers: str) -> int | None:
    """Append the rows, unless an earlier try of this task has; returns the version of the table that has them."""
    try:
        with SyncCommitClient(bootstrap_servers, dataset_uri=uri, producer="airflow", timeout=600) as client:
            result = client.append(rows, create=True, app=unit_of_task())
    except FINAL as error:
        raise AirflowFailException(str(error)) from error
    print(f"version {result.version}" + (", by an earlier try" if result.duplicate else ""))
    return result.version


with DAG("events", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule="@daily", catchup=False) as dag:

    @task(retries=5, retry_delay=timedelta(minutes=1))
    def load() -> int | None:
        """The rows of a day."""
        day = get_current_context()["logical_date"].date().isoformat()
        rows = [{"day": day, "number": number} for number in range(3)]
        return append_once(rows, os.environ["EVENTS_URI"], os.environ["COMMITTERD_SERVERS"])

    load()
