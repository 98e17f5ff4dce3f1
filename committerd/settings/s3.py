"""Group `s3` of the settings: the S3 server, the credentials, the timeouts.

Unset values come from the places that every AWS SDK reads: environment, profile, web identity (IRSA), container and
instance metadata.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from committerd.settings.requests import EndpointUrl, RequestSettings


class S3Settings(RequestSettings):
    """How to reach S3, or a server that speaks its protocol."""

    endpoint_url: EndpointUrl = Field(
        default=None,
        description="URL of an S3-compatible server; unset: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or AWS itself.",
    )
    region: str | None = Field(
        default=None,
        min_length=1,
        description="Region of the bucket; unset: AWS_REGION, AWS_DEFAULT_REGION, or the profile's; with endpoint_url, "
        "us-east-1 if none of them is set.",
    )
    addressing_style: Literal["auto", "path", "virtual"] = Field(
        default="auto",
        description="Whether URLs name the bucket in the path or in the host. Most S3-compatible servers need path.",
    )
    access_key_id: SecretStr | None = Field(
        default=None,
        description="Access key; unset: the usual chain of AWS credentials (environment, profile, web identity, "
        "container, instance).",
    )
    secret_access_key: SecretStr | None = Field(default=None, description="Secret of access_key_id.")
    session_token: SecretStr | None = Field(
        default=None,
        description="Session token of temporary credentials; they expire, and only the AWS chain renews them.",
    )
    profile: str | None = Field(
        default=None, min_length=1, description="Profile of the AWS configuration files; unset: AWS_PROFILE."
    )
    tls_verify: bool = Field(default=True, description="Check the server's certificate; use false only in tests.")
    ca_bundle: str | None = Field(
        default=None,
        description="PEM file of the authorities that signed the certificate; unset: AWS_CA_BUNDLE, or the usual ones.",
    )
    server_side_encryption: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = Field(
        default=None,
        description="Encryption that each object is written with (header x-amz-server-side-encryption); unset: the "
        "bucket's default. Set it where the bucket's policy refuses a PUT without the header.",
    )
    sse_kms_key_id: str | None = Field(
        default=None,
        min_length=1,
        description="Id or ARN of the KMS key for server_side_encryption; unset: the bucket's, or the account's own.",
    )
    checksum_algorithm: Literal["SHA256"] | None = Field(
        default=None,
        description="Checksum that each PUT carries. A bucket with object lock demands it; many S3-compatible servers "
        "do not know it.",
    )
    connections_max: int = Field(default=256, ge=1, le=1000, description="Maximum number of open connections.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together: set both or none")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token needs access_key_id and secret_access_key")
        if self.profile is not None and self.access_key_id is not None:
            raise ValueError("profile and access_key_id exclude each other: set one of them")
        if self.ca_bundle is not None and not self.tls_verify:
            raise ValueError("ca_bundle has no effect while tls_verify is false")
        if self.sse_kms_key_id is not None and not (self.server_side_encryption or "").startswith("aws:kms"):
            raise ValueError("sse_kms_key_id needs server_side_encryption aws:kms or aws:kms:dsse")
        return self
