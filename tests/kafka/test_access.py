"""Messages about missing ACLs."""

from __future__ import annotations

import pytest
from kafka import errors

from committerd_login.access import NotAllowed, denied, naming_acl


def test_a_producer_that_gets_no_id_lacks_the_right_to_write_to_its_topic() -> None:
    """The error is as kafka-python writes it."""
    refused = f"Unexpected error in InitProducerIdResponse: {errors.ClusterAuthorizationFailedError()}"
    said = denied(errors.KafkaError(refused), "Write", topic="events.staged")
    assert said is not None
    assert said.startswith("the user has no ACL Write on Topic events.staged. Remedy: ")
    timed_out = f"Unexpected error in InitProducerIdResponse: {errors.KafkaTimeoutError()}"
    assert denied(errors.KafkaError(timed_out), "Write", topic="events.staged") is None


def test_a_topic_that_kafka_does_not_show_may_be_there() -> None:
    said = denied(errors.UnknownTopicOrPartitionError(), "Read", topic="events.staged")
    assert said == "topic events.staged does not exist, or the user has no ACL Read on it: Kafka does not tell which"
    assert denied(errors.UnknownTopicOrPartitionError(), "Read", group="committerd.events") is None


def test_the_error_says_which_topic_it_is_about_where_nobody_else_does() -> None:
    """A poll raises a set of topics."""
    for said in ({"returns", "orders"}, "orders"):
        with pytest.raises(NotAllowed) as raised, naming_acl("Read"):
            raise errors.TopicAuthorizationFailedError(said)
        assert str(raised.value).startswith("the user has no ACL Read on Topic orders. Remedy: ")


def test_other_errors_stay_what_they_are() -> None:
    for kind in (errors.UnknownTopicOrPartitionError, errors.KafkaTimeoutError):
        with pytest.raises(kind), naming_acl("Read", topic="orders"):
            raise kind
