"""Group `dynamodb` of the settings: the external manifest store of `s3+ddb://` tables.

Credentials, region, timeouts and attempts are those of group `s3`, as in pylance.
"""

from __future__ import annotations

from pydantic import Field

from committerd.settings.group import SettingsGroup
from committerd.settings.requests import EndpointUrl


class DynamoDBSettings(SettingsGroup):
    """Where DynamoDB is, for tables at s3+ddb://."""

    endpoint_url: EndpointUrl = Field(
        default=None,
        description="URL of a server that speaks DynamoDB's protocol; unset: AWS_ENDPOINT_URL_DYNAMODB, "
        "AWS_ENDPOINT_URL, or AWS itself.",
    )
