"""A broker with an authorizer, and the rights of its users."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from harness.kafka import LOGIN, PATIENT, KafkaBroker
from harness.scene import until

Right = tuple[ACLOperation, ResourceType, str]

_PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
_CLUSTER = "kafka-cluster"


def listed(login_of: str, dataset: str, *, group: str = "", topic: str = "") -> list[Right]:
    """The rights that docs/operating.md lists for a command: its row is the only one that names it so.

    `group`: the committers' group, if it is not the dataset's own. `topic`: the topic that a pipeline with the
    dataset's name reads.
    """
    resources = {
        "staged": (ResourceType.TOPIC, f"{dataset}.staged"),
        "outcomes": (ResourceType.TOPIC, f"{dataset}.outcomes"),
        "dead": (ResourceType.TOPIC, f"{dataset}.dead"),
        "group": (ResourceType.GROUP, group or f"committerd.{dataset}"),
        "topics that it reads": (ResourceType.TOPIC, topic),
        "topic for bad records": (ResourceType.TOPIC, f"{dataset}.bad"),
        "its own group": (ResourceType.GROUP, f"committerd.ingest.{dataset}"),
    }
    (row,) = [row for row in _rows() if login_of in row["login of"]]
    rights = [
        (_operation(word), *resource)
        for column, resource in resources.items()
        for word in re.findall(r"\w+", row.get(column, ""))
    ]
    for words, resource in re.findall(r"([\w ]+) on (?:the )?(TransactionalId `\*`|Cluster)", row.get("other", "")):
        kind = (ResourceType.CLUSTER, _CLUSTER) if resource == "Cluster" else (ResourceType.TRANSACTIONAL_ID, "*")
        rights += [(_operation(word), *kind) for word in words.split() if word != "and"]
    assert rights, login_of
    return rights


def _rows() -> Iterator[dict[str, str]]:
    """The rows of the page's tables of rights, by their columns."""
    for table in re.findall(r"^\| login of \|.*\n(?:\|.*\n)+", _PAGE.read_text("utf-8"), re.MULTILINE):
        head, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        for row in body:
            yield dict(zip(head, row, strict=True))


def names_missing(right: Right, told: str) -> bool:
    """Whether a message says that the user lacks the right, or Describe, which Read and Write include."""
    operation, resource, name = right
    kind = {ResourceType.TOPIC: "Topic", ResourceType.GROUP: "Group"}[resource]
    wanted = f"({operation.name.title().replace('_', '')}|Describe)"
    return bool(
        re.search(f"no ACL {wanted} on {kind} {re.escape(name)}", told)
        or re.search(f"topic '?{re.escape(name)}'?[: ].*?has no ACL {wanted} on it", told)
    )


def _operation(word: str) -> ACLOperation:
    """From Kafka's term, such as DescribeConfigs."""
    return ACLOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).upper()]


def login(broker: KafkaBroker) -> dict[str, str]:
    """The settings of a process that logs in as the user, with their environment names without the prefix."""
    user, password = LOGIN
    return {
        "KAFKA__BOOTSTRAP_SERVERS": broker.login_servers,
        "KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "KAFKA__SASL_MECHANISM": "PLAIN",
        "KAFKA__SASL_PLAIN_USERNAME": user,
        "KAFKA__SASL_PLAIN_PASSWORD": password,
    }


def strict_broker() -> KafkaBroker:
    """A broker whose user may do what ACLs allow; a client without a login is an administrator."""
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    return KafkaBroker(settings={**PATIENT, **authorizer})


def allow(broker: KafkaBroker, rights: Sequence[Right], *, user: str = LOGIN[0]) -> None:
    """Give the user these rights. Blocks until the broker applies them."""
    with _administrator(broker) as admin:
        admin.create_acls([_acl(ACL, right, user) for right in rights])
        # The controller responds before the broker applies them.
        until(lambda: all(admin.describe_acls(_acl(ACLFilter, right, user))[0] for right in rights))


def allow_only(broker: KafkaBroker, rights: Sequence[Right], *, user: str = LOGIN[0]) -> None:
    """Give the user these rights, and take all others: those of other tests, too."""
    with _administrator(broker) as admin:
        every = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
        owned = ACLFilter(f"User:{user}", None, ACLOperation.ANY, ACLPermissionType.ANY, every)
        _take(admin, owned)
    allow(broker, rights, user=user)


def forbid(broker: KafkaBroker, right: Right, *, user: str = LOGIN[0]) -> None:
    """Take a right from the user. Blocks until the broker refuses what it allowed."""
    with _administrator(broker) as admin:
        _take(admin, _acl(ACLFilter, right, user))


def _take(admin: Any, rights: ACLFilter) -> None:
    admin.delete_acls([rights])
    until(lambda: not admin.describe_acls(rights)[0])


@contextlib.contextmanager
def _administrator(broker: KafkaBroker) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        yield admin
    finally:
        admin.close()


def _acl(kind: Any, right: Right, user: str) -> Any:
    operation, resource, name = right
    return kind(
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePattern(resource, name),
    )
