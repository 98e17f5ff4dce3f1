"""Names the missing Kafka ACL in messages, so that an operator can add it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka import errors

from committerd_login.causes import gets_no_producer_id


def lacking(operation: str, resource: str, name: str = "") -> str:
    """A sentence about one missing ACL. `operation` and `resource` are Kafka's terms, such as Read and Topic."""
    flag = {
        "Group": f"--group {name}",
        "Topic": f"--topic {name}",
        "Cluster": "--cluster",
        "TransactionalId": f"--transactional-id '{name}'",
    }[resource]
    shown = f"{resource} {name}".rstrip()
    return (
        f"the user has no ACL {operation} on {shown}. Remedy: kafka-acls.sh --add --allow-principal User:NAME "
        f"--operation {operation} {flag}"
    )


def hidden(operation: str, topic: str) -> str:
    """A sentence about a topic that Kafka does not show. `operation`: what was to be done with it."""
    return f"topic {topic} does not exist, or the user has no ACL {operation} on it: Kafka does not tell which"


def denied(error: Exception, operation: str, *, topic: str = "", group: str = "") -> str | None:
    """A sentence about the missing ACL, if the error is or may be about authorization; else None.

    `operation`: what was to be done with the topic or the group. Read includes Describe. Without `topic` and `group`,
    the error says which.
    """
    match error:
        case errors.GroupAuthorizationFailedError():
            return lacking(operation, "Group", group or _named(error))
        case errors.TopicAuthorizationFailedError():
            return lacking(operation, "Topic", topic or _named(error))
        case errors.ClusterAuthorizationFailedError():
            return lacking("IdempotentWrite", "Cluster")
        case errors.UnknownTopicOrPartitionError() if topic:
            return hidden(operation, topic)
        case errors.KafkaError() if gets_no_producer_id(error):
            return lacking(operation, "Topic", topic)
        case _:
            return None


class NotAllowed(errors.KafkaError):  # type: ignore[misc]  # kafka-python has no types
    """The user lacks an ACL. The text names it."""

    def __str__(self) -> str:
        return str(self.args[0])  # without the name of the class, which kafka-python puts before it


@contextmanager
def naming_acl(operation: str, *, topic: str = "") -> Iterator[None]:
    """Raise `NotAllowed` in place of an error about authorization. The arguments are those of `denied`."""
    try:
        yield
    except errors.UnknownTopicOrPartitionError:  # the caller knows what that means
        raise
    except errors.KafkaError as error:
        said = denied(error, operation, topic=topic)
        if said is None:
            raise
        raise NotAllowed(said) from error


def _named(error: Exception) -> str:
    """The group that the error names, or the first of the topics."""
    names = error.args[0] if error.args else ""
    return min(names) if isinstance(names, set) else str(names)
