from __future__ import annotations

from committerd_common.errors import CommitterError, CorruptTable, InvalidRequest


def test_an_error_has_the_code_of_its_class_unless_it_is_given_one() -> None:
    assert InvalidRequest("it is wrong").code == "invalid"
    assert InvalidRequest("it is wrong", code="header_invalid").code == "header_invalid"
    assert InvalidRequest("it is wrong").code == "invalid", "a code of one error changes no other"
    assert issubclass(CorruptTable, CommitterError)
    assert str(CorruptTable("the manifest ends early")) == "the manifest ends early"
