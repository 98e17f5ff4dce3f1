"""A broker with an authorizer, and the rights of its one user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from harness.kafka import LOGIN, KafkaBroker
from harness.scene import until

Right = tuple[ACLOperation, ResourceType, str]


def strict_broker() -> KafkaBroker:
    """A broker whose user may do what ACLs allow; a client without a login is an administrator."""
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    return KafkaBroker(settings=authorizer)


def allow(broker: KafkaBroker, rights: Sequence[Right]) -> None:
    """Give the user these rights. Blocks until the broker applies them."""
    with _administrator(broker) as admin:
        admin.create_acls([_acl(ACL, right) for right in rights])
        # The controller responds before the broker applies them.
        until(lambda: all(admin.describe_acls(_acl(ACLFilter, right))[0] for right in rights), seconds=15)


def forbid(broker: KafkaBroker, right: Right) -> None:
    """Take a right from the user."""
    with _administrator(broker) as admin:
        admin.delete_acls([_acl(ACLFilter, right)])


@contextlib.contextmanager
def _administrator(broker: KafkaBroker) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        yield admin
    finally:
        admin.close()


def _acl(kind: Any, right: Right) -> Any:
    operation, resource, name = right
    return kind(
        principal=f"User:{LOGIN[0]}",
        host="*",
        operation=operation,
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePattern(resource, name),
    )
