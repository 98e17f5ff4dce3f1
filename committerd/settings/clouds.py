"""Groups `azure` and `gcs` of the settings: credentials, timeouts.

Unset values come from the environment variables that Lance reads too (AZURE_..., GOOGLE_...), and from what the
platform gives to a workload: managed identity, workload identity, application default credentials.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, model_validator

from committerd.settings.requests import RequestSettings


class CloudSettings(RequestSettings):
    """The settings that both clouds have."""

    ca_bundle: str | None = Field(
        default=None,
        min_length=1,
        description="PEM file of authorities that the server's certificate may be of, besides the usual ones. "
        "`committerd maintain` and `append` take these alone (as SSL_CERT_FILE).",
    )
    connections_max: int = Field(
        default=256, ge=1, le=1000, description="Maximum number of requests at the same time, for each container."
    )

    def at_most_one_of(self, *names: str) -> Self:
        """These settings, if at most one of `names` is set. Raises `ValueError` otherwise."""
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: set one of them")
        return self


class AzureSettings(CloudSettings):
    """How to reach Azure Blob Storage, for tables at az:// and abfss://."""

    account_name: str | None = Field(
        default=None,
        min_length=1,
        description="Storage account; unset: AZURE_STORAGE_ACCOUNT_NAME. A URI with an account (container@account...) "
        "wins over both.",
    )
    account_key: SecretStr | None = Field(default=None, description="Key of the account.")
    sas_token: SecretStr | None = Field(
        default=None, description="Shared access signature: it must allow reading, writing, deleting and listing."
    )
    client_id: str | None = Field(
        default=None,
        min_length=1,
        description="Client id of a service principal, a workload identity or a user-assigned managed identity; unset: "
        "AZURE_CLIENT_ID.",
    )
    client_secret: SecretStr | None = Field(
        default=None, description="Secret of client_id, for a service principal; needs tenant_id."
    )
    tenant_id: str | None = Field(
        default=None, min_length=1, description="Tenant of client_id; unset: AZURE_TENANT_ID."
    )
    federated_token_file: str | None = Field(
        default=None,
        min_length=1,
        description="File with the token of a workload identity; unset: AZURE_FEDERATED_TOKEN_FILE, which AKS sets. "
        "Needs client_id and tenant_id. Without any credentials, it is the managed identity.",
    )
    authority_host: str | None = Field(
        default=None,
        min_length=1,
        description="Where tokens come from; unset: AZURE_AUTHORITY_HOST, or https://login.microsoftonline.com.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        return self.at_most_one_of("account_key", "sas_token", "client_secret", "federated_token_file")


class GcsSettings(CloudSettings):
    """How to reach Google Cloud Storage, for tables at gs://."""

    service_account: str | None = Field(
        default=None,
        min_length=1,
        description="File with the key of a service account; unset: GOOGLE_SERVICE_ACCOUNT, or application default "
        "credentials (GOOGLE_APPLICATION_CREDENTIALS, gcloud's file, the metadata server, which GKE has too).",
    )
    service_account_key: SecretStr | None = Field(
        default=None, description="The key of a service account itself, in place of service_account."
    )
    application_credentials: str | None = Field(
        default=None,
        min_length=1,
        description="File with application default credentials; unset: GOOGLE_APPLICATION_CREDENTIALS.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        return self.at_most_one_of("service_account", "service_account_key", "application_credentials")
