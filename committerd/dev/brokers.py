"""Which Kafka `committerd dev` uses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class BrokerKind(Enum):
    """Where the Kafka comes from."""

    GIVEN = "given"
    """A Kafka that runs already."""
    HOME = "home"
    """An unpacked Apache Kafka, which is started here."""
    DOCKER = "docker"
    """The image apache/kafka."""
    OWN = "own"
    """Apache Kafka's jars, downloaded once and started here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableBrokers:
    """What there is on this machine."""

    given: str
    """Addresses of a Kafka that runs; empty if none is named."""
    given_by: str
    """The environment variable that names them."""
    home: Path | None
    """The folder that KAFKA_HOME names."""
    docker: bool
    """Whether a Docker engine responds."""


def choose(found: AvailableBrokers) -> BrokerKind:
    """The Kafka that there is; what the user has named goes first."""
    if found.given:
        return BrokerKind.GIVEN
    if found.home is not None:
        return BrokerKind.HOME
    return BrokerKind.DOCKER if found.docker else BrokerKind.OWN
