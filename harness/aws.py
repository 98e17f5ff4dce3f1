"""Access to a service with an AWS protocol, for tests, without committerd."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar

import botocore.session
from botocore.config import Config

REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class AwsEndpoint:
    """The URL and credentials of a service."""

    service: ClassVar[str]
    config: ClassVar[Config] = Config(retries={"total_max_attempts": 1}, connect_timeout=30)

    url: str
    access_key: str
    secret_key: str = field(repr=False)
    region: str = REGION

    @functools.cache  # noqa: B019  # there are few, and making one takes longer than most requests
    def client(self) -> Any:
        """A synchronous client without retries, for use in any thread."""
        return botocore.session.Session().create_client(
            self.service,
            endpoint_url=self.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=self.config,
        )
