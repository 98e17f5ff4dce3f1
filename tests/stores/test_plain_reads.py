"""GET requests without the SDK: signed as the SDK signs them, or not sent at all."""

from __future__ import annotations

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, ReadOnlyCredentials

from committerd.stores.plain_reads import Signer

BASE = "https://bucket.s3.eu-north-1.amazonaws.com"
PAYLOAD = "UNSIGNED-PAYLOAD"
REGION = "eu-north-1"
TIMESTAMP = "20261123T221500Z"


def new_signer(base: str) -> Signer:
    return Signer(base, payload=PAYLOAD, region=REGION, service="s3")


@pytest.mark.parametrize("token", [None, "a token"])
@pytest.mark.parametrize("base", [BASE, "http://127.0.0.1:9000/bucket"])
@pytest.mark.parametrize("name", ["data/a.lance", "lake/table.lance/data/a~b%20%C3%A4.lance"])
@pytest.mark.parametrize("span", ["", "bytes=0-99"])
def test_a_signature_is_the_sdks(base: str, name: str, token: str | None, span: str) -> None:
    signer, credentials = new_signer(base), ReadOnlyCredentials("key", "secret", token)
    ours = signer.headers(name, credentials, timestamp=TIMESTAMP, span=span)
    request = AWSRequest(method="GET", url=f"{base}/{name}", headers={"X-Amz-Content-SHA256": PAYLOAD})
    if span:
        request.headers["Range"] = span
    if token:
        request.headers["X-Amz-Security-Token"] = token
    request.headers["X-Amz-Date"] = request.context["timestamp"] = TIMESTAMP
    sdk = S3SigV4Auth(Credentials("key", "secret", token), "s3", REGION)
    signature = sdk.signature(sdk.string_to_sign(request, sdk.canonical_request(request)), request)
    assert ours["authorization"].endswith(f"Signature={signature}")
    assert ours.get("x-amz-security-token") == token


def test_a_new_day_or_secret_has_a_key_of_its_own() -> None:
    signer = new_signer(BASE)
    tried = [("secret", TIMESTAMP), ("secret", "20261124T000000Z"), ("another", TIMESTAMP), ("secret", TIMESTAMP)]
    signed = [signer.headers("o", ReadOnlyCredentials("key", secret, None), timestamp=at) for secret, at in tried]
    alone = [
        new_signer(BASE).headers("o", ReadOnlyCredentials("key", secret, None), timestamp=at) for secret, at in tried
    ]
    assert signed == alone
