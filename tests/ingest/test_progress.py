"""Where a split of a reader goes on, by what the table says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from committerd_client.app_marks import AppMark
from committerd_ingest.progress import GoOn, Progress, Unclear, app_id_of_split, progress_in, where_to_go_on

NOTE = Progress(plan=3, before="10", after="12", at_ms=5, of="lists a", by="x-1")
SETTLED = replace(NOTE, before="12")


def mark(version: int) -> AppMark:
    return AppMark(app_id="a", run="", version=version, uuid="u", table_version=1, offset=0)


@pytest.mark.parametrize(
    ("version", "note", "found"),
    [
        (None, None, GoOn(None, 0)),
        (3, NOTE, GoOn("10", 3)),  # the rows of the plan are not in the table
        (4, NOTE, GoOn("12", 4)),
        (3, SETTLED, GoOn("12", 3)),
        (None, SETTLED, GoOn("12", 0)),  # a mark that was forgotten
        (3, replace(NOTE, before=None), GoOn(None, 3)),
    ],
)
def test_a_split_goes_on(version: int | None, note: Progress | None, found: GoOn) -> None:
    assert where_to_go_on(None if version is None else mark(version), note) == found


@pytest.mark.parametrize(
    ("version", "note", "reason"),
    [
        (None, NOTE, "mark_lost"),
        (4, None, "mark_lost"),
        (2, NOTE, "mark_lost"),
        (5, NOTE, "mark_lost"),
        (-1, NOTE, "mark_released"),
    ],
)
def test_a_split_is_stopped_where_it_is_not_certain_what_the_table_has(
    version: int | None, note: Progress | None, reason: str
) -> None:
    found = where_to_go_on(None if version is None else mark(version), note)
    assert isinstance(found, Unclear)
    assert found.reason == reason


def test_a_plan_has_a_number_that_no_unit_which_may_still_wait_has() -> None:
    assert [GoOn(None, number).plan for number in (0, 1, 2, 3, 4)] == [1, 3, 3, 5, 5]


@pytest.mark.parametrize(
    ("before", "after"),
    [("abc", "abcdef"), ("abc", "abd"), (None, "x"), ("", "x"), ("xyz", "x"), (None, None), ("a", "a")],
)
def test_a_note_stands_in_the_table(before: str | None, after: str | None) -> None:
    note = replace(NOTE, before=before, after=after)
    assert progress_in({"committerd-ingest.a": note.text()}, "a") == note
    assert progress_in({"committerd-ingest.a": note.text()}, "b") is None


def test_what_both_tokens_begin_with_stands_there_once() -> None:
    long = "x" * 200_000
    assert len(replace(NOTE, before=long, after=long + "y").text()) < 201_000


@pytest.mark.parametrize("text", ["", "7", "{}", '{"topic_id": "x", "offset": 1, "at_ms": 1}'])
def test_a_note_that_cannot_be_read_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=r"committerd-ingest\.a in the table's metadata"):
        progress_in({"committerd-ingest.a": text}, "a")


def test_an_application_is_named_after_pipeline_reader_and_split() -> None:
    names = {app_id_of_split(*one) for one in (("p", "r", "s"), ("q", "r", "s"), ("p", "q", "s"), ("p", "r", "t"))}
    assert len(names) == 4
    assert all(len(one) <= 128 for one in names)
