"""Group `dynamodb` of the settings: the external manifest store of `s3+ddb://` tables.

Credentials, region, timeouts and attempts are those of group `s3`, as in pylance.
"""

from __future__ import annotations

from pydantic import Field, field_validator

from committerd.settings.group import SettingsGroup
from committerd.settings.s3 import checked_endpoint


class DynamoDBSettings(SettingsGroup):
    """Where DynamoDB is, for tables at s3+ddb://."""

    endpoint_url: str | None = Field(
        default=None,
        description="URL of a server that speaks DynamoDB's protocol; unset: AWS_ENDPOINT_URL_DYNAMODB, "
        "AWS_ENDPOINT_URL, or AWS itself.",
    )

    @field_validator("endpoint_url")
    @classmethod
    def _endpoint(cls, value: str | None) -> str | None:
        return checked_endpoint(value)
