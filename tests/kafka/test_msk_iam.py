"""The login for AWS_MSK_IAM that kafka-python sends, held against botocore's signer; no MSK cluster is asked.

Its form: https://github.com/aws/aws-msk-iam-auth, "Details". It is a presigned URL (AWS Signature Version 4, query
string), whose parameters are members of a JSON object.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from kafka.net.sasl import get_sasl_mechanism

from committerd.kafka.options import producer_options
from committerd.settings.kafka import KafkaSettings
from committerd_client import CommitClient

HOST = "b-1.lake.abc123.c2.kafka.eu-central-1.amazonaws.com"
KEY, SECRET, SESSION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a session/token+=="


@pytest.fixture(params=["", SESSION], ids=["keys of a user", "keys of a role"])
def session_token(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Credentials in the environment; those of a role have a session token."""
    for name, value in {"ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET, "DEFAULT_REGION": "eu-central-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    token = str(request.param)
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    else:
        monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    return token


def committers_options() -> dict[str, Any]:
    settings = KafkaSettings(
        bootstrap_servers=(f"{HOST}:9098",), security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM"
    )
    return producer_options(settings, "outcomes", "t", record_bytes_max=1024)


def clients_options() -> dict[str, Any]:
    options = {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"}
    client = CommitClient(f"{HOST}:9098", dataset="events", kafka_options=options)
    return client._connection.producer_config()


OPTIONS = {"the committer": committers_options, "a client": clients_options}


def login(whose: str) -> dict[str, str]:
    """What kafka-python's client with these options sends to a broker."""
    options = OPTIONS[whose]()
    sent = get_sasl_mechanism(options["sasl_mechanism"])(host=HOST, **options).auth_bytes()
    made: dict[str, str] = json.loads(sent)
    return made


def signed_by_botocore(at: str, token: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The parameters of the URL that botocore signs at this time."""
    moment = datetime.strptime(at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_: moment)
    request = AWSRequest(method="GET", url=f"https://{HOST}/?Action=kafka-cluster%3AConnect")
    credentials = Credentials(KEY, SECRET, token or None)
    signer = botocore.auth.SigV4QueryAuth(credentials, "kafka-cluster", "eu-central-1", expires=900)
    signer.add_auth(request)
    return {name.lower(): value for name, value in parse_qsl(urlsplit(request.url).query)}


@pytest.mark.parametrize("whose", OPTIONS)
def test_the_login_is_what_botocore_signs(session_token: str, monkeypatch: pytest.MonkeyPatch, whose: str) -> None:
    sent = login(whose)
    expected: dict[str, Any] = signed_by_botocore(sent["x-amz-date"], session_token, monkeypatch)
    assert sent == {**expected, "version": "2020_10_22", "host": HOST, "user-agent": "kafka-python"}
    assert ("x-amz-security-token" in sent) is bool(session_token)


@pytest.mark.parametrize("whose", OPTIONS)
def test_a_login_reads_the_credentials_anew(session_token: str, monkeypatch: pytest.MonkeyPatch, whose: str) -> None:
    """Those of a role change every hour."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDANOTHER")
    assert login(whose)["x-amz-credential"].startswith("AKIDANOTHER/")
