"""Messages about missing ACLs."""

from __future__ import annotations

from kafka import errors

from committerd_login.access import denied


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
