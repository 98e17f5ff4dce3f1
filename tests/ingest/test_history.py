"""Debezium's changes beside a dict, under kills; `make ingest-history` runs it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.child import Launch
from harness.kafka import KafkaBroker, RunningKafka
from tests.acceptance.ingest_history import run


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.pylance
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_history_of_changes_leaves_what_a_dict_has_over_kills_and_new_columns(
    kafka: KafkaBroker | RunningKafka, tmp_path: Path, launch: Launch
) -> None:
    assert run(2000, 3, servers=kafka.bootstrap_servers, folder=tmp_path, launch=launch, tell=print) == []
