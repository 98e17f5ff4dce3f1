"""The producers with the most waiting records, by name."""

from __future__ import annotations

from committerd.queue.most_waiting import NAMED_MIN, most_waiting


def test_the_five_with_the_most_are_named_and_the_others_counted() -> None:
    waiting = {b"pproducer-%d" % number: number for number in range(1, 9)}
    assert list(most_waiting(waiting).items()) == [
        ("producer-8", 8),
        ("producer-7", 7),
        ("producer-6", 6),
        ("producer-5", 5),
        ("producer-4", 4),
        ("other", 1 + 2 + 3),
    ]
    assert most_waiting({}) == {}
    assert most_waiting({b"pa": 2}) == {"a": 2}


def test_who_has_no_producer_is_named_by_its_application() -> None:
    waiting = {b"anightly": 3, b"a": 2, b"p\xff\n": 1}
    assert most_waiting(waiting) == {"app-id nightly": 3, "no producer": 2, "\\xff\n": 1}


def test_few_records_make_no_name_for_a_metric() -> None:
    waiting = {b"pflood": NAMED_MIN, b"psmall": NAMED_MIN - 1, b"pother": NAMED_MIN + 1}
    found = most_waiting(waiting, at_least=NAMED_MIN)
    assert found == {"flood": NAMED_MIN, "other": NAMED_MIN - 1 + NAMED_MIN + 1}
