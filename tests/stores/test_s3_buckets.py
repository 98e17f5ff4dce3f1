"""S3 as companies set it up, on a real server: buckets that lock objects, and credentials by web identity."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from botocore.session import Session

from committerd.stores.port import Created, Exists
from harness.s3 import S3Endpoint
from tests.stores.s3_stores import opened, settings_of

pytestmark = pytest.mark.s3

KEY = "_versions/1.manifest"
_ANSWER = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{AccessKeyId}</AccessKeyId>
<SecretAccessKey>{SecretAccessKey}</SecretAccessKey><SessionToken>{SessionToken}</SessionToken>
<Expiration>{end}</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


async def test_a_bucket_that_locks_objects_takes_commits_and_deletes(minio: S3Endpoint) -> None:
    bucket = f"locked-{uuid.uuid4().hex[:12]}"
    client = minio.client()
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    retention = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
    client.put_object_lock_configuration(
        Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": retention}
    )
    async with opened(settings_of(minio, checksum_algorithm="SHA256"), bucket, "t") as store:
        assert await store.put_if_absent(KEY, b"ours") == Created()
        assert await store.put_if_absent(KEY, b"theirs") == Exists()
        assert client.get_object_retention(Bucket=bucket, Key=f"t/{KEY}")["Retention"]["Mode"] == "COMPLIANCE"
        await store.delete(KEY)
        assert await store.get(KEY) is None
        assert await store.put_if_absent(KEY, b"later") == Created()
        assert await store.get(KEY) == b"later"


class Sts:
    """Gives temporary keys of MinIO for a token of a web identity. The first ones end soon, later ones in an hour."""

    def __init__(self, minio: S3Endpoint) -> None:
        self.tokens: list[str] = []
        session = Session()
        session.set_credentials(minio.access_key, minio.secret_key)
        assume = session.create_client("sts", endpoint_url=minio.url, region_name=minio.region).assume_role
        tokens = self.tokens

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                assert asked["Action"] == ["AssumeRoleWithWebIdentity"]
                tokens.extend(asked["WebIdentityToken"])
                keys = assume(RoleArn="arn:minio:iam:::role/any", RoleSessionName="any")["Credentials"]
                # The SDK renews keys of which less than ten minutes are left before it signs with them.
                end = datetime.now(UTC) + timedelta(minutes=5 if len(tokens) == 1 else 60)
                body = _ANSWER.format(**keys, end=end.strftime("%Y-%m-%dT%H:%M:%SZ")).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Sts:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def sts(minio: S3Endpoint) -> Iterator[Sts]:
    with Sts(minio) as running:
        yield running


async def test_keys_of_a_web_identity_are_renewed_with_the_token_of_that_moment(
    minio: S3Endpoint, sts: Sts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::111122223333:role/committer")
    settings = settings_of(minio, access_key_id=None, secret_access_key=None)
    async with opened(settings, minio.make_bucket(), "t") as store:
        assert await store.put_if_absent(KEY, b"ours") == Created()
        assert sts.tokens == ["first"]
        token.write_text("second")
        assert await store.put_if_absent(KEY, b"theirs") == Exists()
        assert sts.tokens == ["first", "second"]
        assert await store.get(KEY) == b"ours"
        await store.put("o", b"x")
        assert sts.tokens == ["first", "second"]
