"""Which waiting records share versions, and in what order."""

from __future__ import annotations

import random

import pytest

from committerd.queue.rounds import Coalesce, Part, Round, changed_keys, part_of
from committerd_common.messages import Transaction
from tests.lance.operations import append, config, delete, project, update
from tests.lance.samples import fragment, transaction, updates

ROWS, APPENDS, CONFIG = Part.ROWS, Part.APPENDS, Part.CONFIG


@pytest.mark.parametrize(
    ("staged", "part"),
    [
        (append(), APPENDS),
        (delete(fragment(0, deleted=1)), ROWS),
        (update(fragment(0, deleted=1)), ROWS),
        (update(fragment(0), update_mode=Transaction.REWRITE_COLUMNS), None),
        (config(config_updates=updates({"a": "1"})), CONFIG),
        (config(table_metadata_updates=updates({"a": None})), CONFIG),
        (config(upsert_values={"a": "1"}, delete_keys=["b"]), CONFIG),
        (config(config_updates=updates({"a": "1"}, replace=True)), None),
        (config(table_metadata_updates=updates({"a": "1"}, replace=True)), None),
        (config(schema_metadata_updates=updates({"a": "1"})), None),
        (config(schema_metadata={"a": "1"}), None),
        (config(field_metadata_updates={0: updates({"a": "1"})}), None),
        (config(field_metadata={0: Transaction.UpdateConfig.FieldMetadataUpdate(metadata={"a": "1"})}), None),
        (project(), None),
        (transaction(tag="v1", append=Transaction.Append()), None),
    ],
)
def test_a_transaction_belongs_to_a_part_or_to_none(staged: Transaction, part: Part | None) -> None:
    assert part_of(staged) is part
    assert part_of(staged, Coalesce.APPENDS) is (part if part is APPENDS else None)
    assert part_of(staged, Coalesce.NONE) is None


def test_keys_are_those_of_config_and_table_metadata() -> None:
    staged = config(config_updates=updates({"a": "1"}), table_metadata_updates=updates({"a": None}))
    assert changed_keys(staged) == ["config a", "table a"]
    assert changed_keys(config(upsert_values={"a": "1"}, delete_keys=["b"])) == ["config a", "config b"]


def test_any_other_operation_ends_a_round_or_is_one() -> None:
    made = Round()
    assert all(made.takes(part) for part in (APPENDS, ROWS, CONFIG))
    assert not made.takes(None)
    alone = Round()
    assert alone.takes(None)
    assert not alone.takes(ROWS)


def test_records_of_one_application_keep_their_order() -> None:
    made = Round()
    assert made.takes(ROWS, app_id="a")
    assert made.takes(APPENDS, app_id="a")
    assert made.takes(ROWS, app_id="b")
    assert made.takes(APPENDS, app_id="a")
    assert not made.takes(ROWS, app_id="a")


def test_a_record_that_is_refused_at_once_passes_none_before_it() -> None:
    made = Round()
    assert made.refuses() is ROWS
    made.takes(APPENDS)
    made.takes(ROWS)
    assert made.refuses() is APPENDS


def test_records_behind_one_that_is_left_go_on_but_for_those_of_its_writer() -> None:
    def left(**writer: str) -> Round:
        made = Round()
        made.leaves(**writer)
        return made

    for writer, other in (
        ({"app_id": "a"}, {"app_id": "b"}),
        ({"producer": "p"}, {"producer": "q"}),
        ({"app_id": "a", "producer": "p"}, {"app_id": "p", "producer": "a"}),
        ({}, {"app_id": "a", "producer": "p"}),
    ):
        made = left(**writer)
        assert made.takes(APPENDS, **other)
        assert made.takes(APPENDS)
        assert made.takes(APPENDS, **writer) is (not writer)
    assert left(app_id="a").takes(None, app_id="b")
    assert not left(app_id="a").takes(None, app_id="a")


@pytest.mark.parametrize("room", [0, 56, 256])
def test_as_many_go_on_as_a_position_can_carry(room: int) -> None:
    made, taken = Round(room=room), 0
    made.leaves()
    while made.refuses() is not None if taken % 5 == 4 else made.takes(APPENDS):
        taken += 1
    assert taken == room
    assert made.refuses() is None
    assert not made.takes(APPENDS)
    rows = Round(room=2)
    assert rows.takes(APPENDS)
    rows.leaves()
    assert not rows.takes(ROWS) or not rows.takes(ROWS), "each passes the Append and the one that waits"


@pytest.mark.parametrize("seed", range(30))
def test_no_more_are_settled_ahead_than_a_position_can_carry(seed: int) -> None:
    rng = random.Random(seed)
    room = rng.choice((256, 256, 56))
    made, taken = Round(room=room), list[Part]()
    while made.takes(part := rng.choices((ROWS, APPENDS, CONFIG), (5, 5, rng.choice((0, 1))))[0]):
        taken.append(part)
    for last in (ROWS, APPENDS):
        left = [place for place, part in enumerate(taken) if part > last]
        ahead = sum(place > left[0] for place, part in enumerate(taken) if part <= last) if left else 0
        assert ahead <= room
    assert len(taken) >= room
    assert max(sum(one <= last for one in taken) for last in (ROWS, APPENDS)) >= room
