"""GET requests without the SDK: signed as the SDK signs them, or not sent at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as SdkCredentials

from committerd.stores.plain_reads import Credentials, RequestTarget, Signer

WAY = RequestTarget(
    base="https://bucket.s3.eu-north-1.amazonaws.com", payload="UNSIGNED-PAYLOAD", region="eu-north-1", service="s3"
)
TIMESTAMP = "20261123T221500Z"


@pytest.mark.parametrize("token", [None, "a token"])
@pytest.mark.parametrize("base", [WAY.base, "http://127.0.0.1:9000/bucket"])
@pytest.mark.parametrize("name", ["data/a.lance", "lake/table.lance/data/a~b%20%C3%A4.lance"])
@pytest.mark.parametrize("span", ["", "bytes=0-99"])
def test_a_signature_is_the_sdks(base: str, name: str, token: str | None, span: str) -> None:
    signer, credentials = Signer(replace(WAY, base=base)), Credentials("key", "secret", token)
    ours = signer.headers(name, credentials, timestamp=TIMESTAMP, span=span)
    request = AWSRequest(method="GET", url=f"{base}/{name}", headers={"X-Amz-Content-SHA256": WAY.payload})
    if span:
        request.headers["Range"] = span
    if token:
        request.headers["X-Amz-Security-Token"] = token
    request.headers["X-Amz-Date"] = request.context["timestamp"] = TIMESTAMP
    sdk = S3SigV4Auth(SdkCredentials("key", "secret", token), "s3", WAY.region)
    signature = sdk.signature(sdk.string_to_sign(request, sdk.canonical_request(request)), request)
    assert ours["authorization"].endswith(f"Signature={signature}")
    assert ours.get("x-amz-security-token") == token


def test_a_new_day_or_secret_has_a_key_of_its_own() -> None:
    signer = Signer(WAY)
    tried = [("secret", TIMESTAMP), ("secret", "20261124T000000Z"), ("another", TIMESTAMP), ("secret", TIMESTAMP)]
    signed = [signer.headers("o", Credentials("key", secret, None), timestamp=at) for secret, at in tried]
    alone = [Signer(WAY).headers("o", Credentials("key", secret, None), timestamp=at) for secret, at in tried]
    assert signed == alone
