"""The identity of a micro-batch. In process, without Spark."""

from __future__ import annotations

import pytest

from committerd_batch.app_marks import checked
from committerd_client import App
from committerd_spark.errors import AppIdMissing, SecondWrite
from committerd_spark.micro_batch import MicroBatch, StagedUnits, app_unit

pytestmark = pytest.mark.spark


def batch(*, query_name: str = "", batch_id: int = 7) -> MicroBatch:
    return MicroBatch(query_id="q-1", query_name=query_name, batch_id=batch_id, execution="app/1")


def test_the_app_id_is_the_writers_or_else_the_querys_name() -> None:
    assert app_unit(batch(query_name="clicks"), app_id="mine", name=None) == App("mine", 7, "q-1")
    assert app_unit(batch(query_name="clicks"), app_id=None, name=None) == App("clicks", 7, "q-1")
    assert app_unit(batch(query_name="clicks"), app_id=None, name="late") == App("clicks.late", 7, "q-1")


@pytest.mark.parametrize("app_id", ["", "two words", "a" * 129, "ä"])
def test_what_can_not_be_an_app_id_is_refused(app_id: str) -> None:
    with pytest.raises(AppIdMissing, match="can't be an app id"):
        checked(app_id)


def test_a_second_write_of_one_execution_is_noticed() -> None:
    written, app = StagedUnits(), App("a", 7, "q-1")
    written.claim("events", app, "app/1")
    with pytest.raises(SecondWrite, match="batch 7 has been written as app id 'a' already"):
        written.claim("events", app, "app/1")
    written.claim("others", app, "app/1")
    written.claim("events", App("a.late", 7, "q-1"), "app/1")
    written.claim("events", app, "app/2")  # a replay
    written.give_back("events", app)
    written.claim("events", app, "app/2")
