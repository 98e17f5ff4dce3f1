"""What Kafka does not allow us to do, in words that an operator can act on: the ACL that is missing."""

from __future__ import annotations

from kafka import errors


def lacking(operation: str, resource: str, name: str = "") -> str:
    """A sentence about one missing ACL. `operation` and `resource` are Kafka's words, such as Read and Topic."""
    flag = {"Group": f"--group {name}", "Topic": f"--topic {name}", "Cluster": "--cluster"}[resource]
    shown = f"{resource} {name}".rstrip()
    return (
        f"the user has no ACL {operation} on {shown}. Remedy: kafka-acls.sh --add --allow-principal User:NAME "
        f"--operation {operation} {flag}"
    )


def denied(error: Exception, operation: str, *, topic: str, group: str = "") -> str | None:
    """Which ACL is missing, if that is what the error says.

    `operation`: what was done with `topic`. Of a group it is always Read: who may join may also describe it.
    """
    match error:
        case errors.GroupAuthorizationFailedError():
            return lacking("Read", "Group", group)
        case errors.TopicAuthorizationFailedError():
            return lacking(operation, "Topic", topic)
        case errors.ClusterAuthorizationFailedError():
            return lacking("IdempotentWrite", "Cluster")
        case _:
            return None
