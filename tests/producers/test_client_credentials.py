"""Tokens by client credentials, from an OAuth server: their life, new secrets, and what is said about failures."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from committerd_client import CommitClient
from committerd_client.connection import Connection
from committerd_login import client_credentials, kafka_python_options
from committerd_login.client_credentials import ClientCredentials, ClientCredentialsProvider, NoToken
from harness.certificates import Authority
from harness.oidc import OidcServer
from harness.scene import until

SECRET = "s3cret/+=%&: é"


class Clock:
    """Stands still until a test moves it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OidcServer]:
    folder = tmp_path_factory.mktemp("oidc")
    with OidcServer(Authority(folder), folder) as made:
        yield made


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may give a server that is well no processor for three seconds."""
    monkeypatch.setattr(client_credentials, "_SECONDS", 60.0)


_SILENT = r"the token endpoint \S+/token (can't be used: .*timed out|did not answer within 3 s)$"
_PATIENT = pytest.mark.usefixtures("patience")


@pytest.fixture
def oidc(server: OidcServer) -> Iterator[OidcServer]:
    server.secrets = {"me:you": SECRET}
    server.instead, server.lifetime_seconds = None, 100
    server.asked.clear()
    before = set(threading.enumerate())
    yield server
    server.answers.set()
    server.drips = False
    until(lambda: set(threading.enumerate()) <= before)  # a request that is late reaches no other test


def credentials(oidc: OidcServer, **given: Any) -> ClientCredentials:
    usual = {"token_endpoint_url": oidc.token_url, "client_id": "me:you", "cafile": str(oidc.authority.file)}
    return ClientCredentials(**{**usual, "client_secret": SECRET, **given})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def provider(oidc: OidcServer, clock: Clock) -> ClientCredentialsProvider:
    return ClientCredentialsProvider(credentials(oidc, scope="kafka write"), clock)


@_PATIENT
def test_a_token_serves_all_threads_until_most_of_its_life_is_over(
    oidc: OidcServer, provider: ClientCredentialsProvider, clock: Clock
) -> None:
    with ThreadPoolExecutor(8) as threads:
        (first,) = set(threads.map(lambda _: provider.token(), range(8)))
    assert oidc.asked == [{"grant_type": "client_credentials", "scope": "kafka write", "client_id": "me:you"}]
    clock.now += 79
    assert provider.token() == first
    assert len(oidc.asked) == 1
    oidc.lifetime_seconds = 50
    oidc.answers.clear()
    clock.now += 1
    assert provider.token() == first  # a login does not wait for the next token while this one lives
    oidc.answers.set()
    until(lambda: provider.token() != first)
    second = provider.token()
    clock.now += 39
    assert provider.token() == second
    assert len(oidc.asked) == 2


@_PATIENT
def test_a_token_is_used_until_its_end_while_the_server_is_unwell(
    oidc: OidcServer, provider: ClientCredentialsProvider, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    token = provider.token()
    oidc.instead = 503, b"unwell"
    clock.now += 99
    assert [provider.token() for _ in range(3)] == [token] * 3
    until(lambda: "HTTP 503" in caplog.text)
    assert provider.token() == token
    assert len(oidc.asked) == 2  # and not again within a second
    assert (
        "HTTP 503. Check sasl_oauth_token_endpoint_url, and whether the server is well; the last token" in caplog.text
    )
    clock.now += 1
    with pytest.raises(NoToken, match="HTTP 503"):
        provider.token()
    oidc.instead = None
    clock.now += 1
    assert provider.token() != token
    assert SECRET not in caplog.text


def test_a_server_that_hangs_is_asked_once_for_all_threads(
    oidc: OidcServer, provider: ClientCredentialsProvider
) -> None:
    oidc.answers.clear()

    def why(_: int) -> str:
        with pytest.raises(NoToken) as raised:
            provider.token()
        return str(raised.value)

    with ThreadPoolExecutor(4) as threads:
        heard = set(threads.map(why, range(4)))
    for said in heard:
        assert re.search(_SILENT, said)
    assert len(oidc.asked) <= 1  # or none, if the three seconds were over before the request was there


def test_a_response_that_drips_is_not_waited_for(oidc: OidcServer, provider: ClientCredentialsProvider) -> None:
    oidc.drips = True
    for _ in range(2):
        with pytest.raises(NoToken, match=_SILENT):
            provider.token()
    assert len(oidc.asked) <= 1


@_PATIENT
def test_a_secret_in_a_file_is_read_for_each_token(oidc: OidcServer, clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    provider = ClientCredentialsProvider(credentials(oidc, client_secret=None, client_secret_file=str(file)), clock)
    assert provider.token()
    oidc.secrets = {"me:you": "another"}
    clock.now += 100
    with pytest.raises(NoToken, match=r"refuses client 'me:you': HTTP 401 \('invalid_client, unknown client or wrong"):
        provider.token()
    file.write_text("another")
    clock.now += 1
    assert provider.token()
    file.write_text("")
    clock.now += 100
    with pytest.raises(NoToken, match=r"sasl_oauth_client_secret_file: .* is empty"):
        provider.token()


@_PATIENT
@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b'{"error": "invalid_client"}', "Check sasl_oauth_client_id, and sasl_oauth_client_secret or its file"),
        (400, b'{"error": "invalid_scope"}', "Check sasl_oauth_scope"),
        (302, b"", "HTTP 302. Check sasl_oauth_token_endpoint_url"),
        (500, b"[" * 100_000, "HTTP 500. Check"),
        (200, b"<html>", "without an access_token: is sasl_oauth_token_endpoint_url the address"),
        (200, b'["x"]', "without an access_token"),
        (200, b'{"access_token": "a\\u0001b"}', "without an access_token"),
        (400, b'{"error": "' + b"x" * 10_000 + b'"}', "HTTP 400 ('" + "x" * 200 + "')"),
    ],
)
def test_a_failure_says_what_and_where_and_what_to_do(
    oidc: OidcServer, provider: ClientCredentialsProvider, status: int, body: bytes, said: str
) -> None:
    oidc.instead = status, body
    with pytest.raises(NoToken) as raised:
        provider.token()
    assert said in str(raised.value)
    assert oidc.token_url in str(raised.value)
    assert len(oidc.asked) == 1


@_PATIENT
def test_a_server_that_does_not_say_how_long_a_token_lives_is_asked_each_minute(
    oidc: OidcServer, provider: ClientCredentialsProvider, clock: Clock
) -> None:
    oidc.instead = 200, b'{"access_token": "abc"}'
    assert {provider.token(), provider.token()} == {"abc"}
    clock.now += 60
    assert provider.token() == "abc"
    assert len(oidc.asked) == 2


@_PATIENT
@pytest.mark.parametrize(
    ("said", "life"),
    [("1" + "0" * 400, 60), ("Infinity", 60), ("NaN", 60), ("-1", 60), ('"x"', 60), ("[]", 60), ('"3599"', 3599)],
)
def test_the_life_of_a_token_is_a_number_or_a_minute(
    oidc: OidcServer, provider: ClientCredentialsProvider, clock: Clock, said: str, life: int
) -> None:
    oidc.instead = 200, f'{{"access_token": "abc", "expires_in": {said}}}'.encode()
    assert provider.token() == "abc"
    oidc.instead = 503, b""
    clock.now += 0.75 * life
    assert provider.token() == "abc"
    assert len(oidc.asked) == 1
    clock.now += 0.25 * life
    with pytest.raises(NoToken):
        provider.token()


@_PATIENT
def test_a_damaged_file_of_authorities_is_named(oidc: OidcServer, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("x")
    provider = ClientCredentialsProvider(credentials(oidc, cafile=str(file)))
    with pytest.raises(NoToken, match=rf"sasl_oauth_cafile: '{file}' can't be read: "):
        provider.token()


FORKING = """
import os, sys
from committerd_client.connection import Connection
from committerd_login.client_credentials import NoToken
url, secret, cafile = sys.argv[1:]
options = {
    "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_endpoint_url": url,
    "sasl_oauth_client_id": "me:you", "sasl_oauth_client_secret": secret, "sasl_oauth_cafile": cafile,
}
def token(config):
    for _ in range(20):  # each waits for three seconds
        try:
            return config["sasl_oauth_token_provider"].token()
        except NoToken as error:
            failed = error
    raise failed
connection = Connection(
    bootstrap_servers=["b:1"], dataset="d", client_id="c", partition_key="c", max_record_bytes=1, options=options
)
mine = token(connection.producer_config())
for lock_is_held in (False, True):
    provider = connection.admin_config()["sasl_oauth_token_provider"]
    if lock_is_held:  # as by a thread that asks for a token meanwhile, which the child does not have
        provider._lock.acquire()
    child = os.fork()
    if child == 0:
        os._exit(token(connection.consumer_config()) == mine)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_connection_asks_for_a_token_of_its_own_in_a_forked_process(oidc: OidcServer) -> None:
    command = [sys.executable, "-c", FORKING, oidc.token_url, SECRET, str(oidc.authority.file)]
    subprocess.run(command, check=True, timeout=200)


def test_a_client_connects_again_while_a_secret_is_being_replaced(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret")
    connection = Connection(
        bootstrap_servers=["b:1"],
        dataset="d",
        client_id="c",
        partition_key="c",
        max_record_bytes=1,
        options={"security_protocol": "SASL_SSL", "sasl_plain_password_file": str(file)},
    )
    file.write_text("")
    assert connection.producer_config()["sasl_plain_password"] == "s3cret"


@_PATIENT
def test_an_unknown_authority_and_a_closed_port_are_named(oidc: OidcServer) -> None:
    with pytest.raises(NoToken, match=r"can't be used: .*Name the file of its authority in sasl_oauth_cafile"):
        ClientCredentialsProvider(credentials(oidc, cafile=None)).token()
    with pytest.raises(NoToken, match=r"https://127.0.0.1:1/token can't be used: .*refused"):
        ClientCredentialsProvider(credentials(oidc, token_endpoint_url="https://127.0.0.1:1/token")).token()


SASL = {"security_protocol": "SASL_SSL"}
OAUTH = SASL | {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_endpoint_url": "https://idp/token"}


@pytest.mark.parametrize(
    "url",
    ["me:s3cret@proxy:1", "ftp://me:s3cret@proxy:1", "socks5://me:s3cret@proxy", "socks5://me:s3cret@proxy:one", 5],
)
def test_a_wrong_proxy_is_refused_without_its_login(url: Any) -> None:
    with pytest.raises(ValueError, match="proxy_url is socks5://host:port") as caught:
        CommitClient("b:1", dataset="events", kafka_options={"proxy_url": url})
    assert "s3cret" not in str(caught.value)
    good = kafka_python_options({"proxy_url": "socks5h://me:s3cret@proxy:1", "sasl_plain_username": None})
    assert good["proxy_url"] == "socks5h://me:s3cret@proxy:1"


def test_what_a_client_is_given_is_in_no_repr() -> None:
    given = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_password": "s3cret"}
    assert "s3cret" not in repr(vars(CommitClient("b:1", dataset="events", kafka_options=given)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (OAUTH, "need sasl_oauth_client_id"),
        (OAUTH | {"sasl_oauth_client_id": "me"}, "needs sasl_oauth_client_secret or its file, and not both"),
        (
            OAUTH
            | {"sasl_oauth_client_id": "me", "sasl_oauth_client_secret": "s", "sasl_oauth_client_secret_file": "/s"},
            "and not both",
        ),
        (
            OAUTH | {"sasl_oauth_client_id": "me", "sasl_oauth_client_secret_file": "/no/where"},
            "'/no/where' can't be read",
        ),
        (
            OAUTH | {"sasl_oauth_client_id": "me", "sasl_oauth_client_secret": "s", "sasl_oauth_cafile": "/no/where"},
            "sasl_oauth_cafile: there is no file '/no/where'",
        ),
        (
            OAUTH
            | {"sasl_oauth_client_id": "me", "sasl_oauth_client_secret": "s"}
            | {"sasl_oauth_token_endpoint_url": "https://me:s3cret@idp/token"},
            "without a user or password",
        ),
        (
            OAUTH
            | {"sasl_oauth_client_id": "me", "sasl_oauth_client_secret": "s"}
            | {"sasl_oauth_token_endpoint_url": "file:///etc/passwd"},
            "must be https://host/path",
        ),
        *(
            (
                OAUTH
                | {"sasl_oauth_client_id": "me", "sasl_oauth_client_secret": "s"}
                | {"sasl_oauth_token_endpoint_url": url},
                "must be https://host/path (http:// only for localhost)",
            )
            for url in ("http://idp/token", "https://idp:abc/", "https://[::/")
        ),
        (OAUTH | {"security_protocol": "SSL"}, "needs security_protocol SASL_SSL or SASL_PLAINTEXT"),
        ({"sasl_plain_password_file": "/b"}, "sasl_plain_password_file needs security_protocol SASL_SSL"),
        (
            SASL | {"sasl_oauth_scope": "x", "sasl_mechanism": "PLAIN"},
            "sasl_oauth_scope needs sasl_mechanism OAUTHBEARER",
        ),
        (OAUTH | {"sasl_oauth_token_provider": object()}, "exclude each other"),
        (SASL | {"sasl_plain_password": "a", "sasl_plain_password_file": "/b"}, "exclude each other"),
        (SASL | {"sasl_plain_password_file": "/no/where"}, "'/no/where' can't be read"),
    ],
)
def test_a_client_with_options_that_do_not_fit_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="kafka_options: ") as raised:
        CommitClient("b:1", dataset="d", kafka_options=given)
    assert said in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_file_that_is_no_text_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"s3cret\xff")
    with pytest.raises(ValueError, match="it is not UTF-8") as raised:
        kafka_python_options(SASL | {"sasl_plain_password_file": str(tmp_path / "password")})
    assert "s3cret" not in str(raised.value)


def test_clients_of_a_process_share_a_provider() -> None:
    given = OAUTH | {"sasl_oauth_client_id": "me", "sasl_oauth_client_secret": "s3cret"}
    made = [kafka_python_options(given)["sasl_oauth_token_provider"] for _ in range(2)]
    assert made[0] is made[1]
    assert "s3cret" not in repr(
        ClientCredentials(token_endpoint_url="https://a", client_id="b", client_secret="s3cret")
    )
