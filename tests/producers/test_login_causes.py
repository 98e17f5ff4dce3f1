"""Which of kafka-python's lines say why a connection failed."""

from __future__ import annotations

from committerd_login.causes import cause_in


def test_attempts_that_took_different_times_are_one_cause() -> None:
    said = {
        cause_in(f"<KafkaConnection node_id=bootstrap-0>: Connection lost: [Error 7] Request timed out after {ms} ms")
        for ms in (56, 57, 1000.5)
    }
    assert said == {"Connection lost: [Error 7] Request timed out"}


def test_what_names_no_cause_is_left_out() -> None:
    assert cause_in("Bootstrap bootstrap-0 not ready; waiting 0.06 secs") == ""
