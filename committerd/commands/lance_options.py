"""The settings of the stores as pylance's storage options."""

from __future__ import annotations

from committerd.settings.load import Settings


def storage_options(settings: Settings) -> dict[str, str]:
    """The options with which pylance opens the table that committerd opens with these settings."""
    s3 = settings.s3
    secrets = {
        "access_key_id": s3.access_key_id,
        "secret_access_key": s3.secret_access_key,
        "session_token": s3.session_token,
    }
    given = {
        "aws_endpoint": s3.endpoint_url,
        "aws_region": s3.region or ("us-east-1" if s3.endpoint_url else None),
        "dynamodb_endpoint": settings.dynamodb.endpoint_url,
        **{f"aws_{name}": secret.get_secret_value() for name, secret in secrets.items() if secret is not None},
    }
    options = {name: value for name, value in given.items() if value is not None}
    if s3.endpoint_url is not None:
        options["allow_http"] = str(s3.endpoint_url.startswith("http://")).lower()
        options["aws_virtual_hosted_style_request"] = str(s3.addressing_style == "virtual").lower()
    if not s3.tls_verify:
        options["allow_invalid_certificates"] = "true"
    return options
