"""Settings of group `kafka`, and the options of each of kafka-python's clients."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider
from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from committerd.errors import SettingsError
from committerd.kafka.options import (
    admin_options,
    client_id,
    member_options,
    producer_options,
    reader_options,
    topics_of,
    writer_options,
)
from committerd.settings.kafka import KafkaSettings
from committerd_client import CommitClient


def settings(**given: Any) -> KafkaSettings:
    return KafkaSettings(**{"bootstrap_servers": "one:9092,two:9092", **given})


def all_options(of: KafkaSettings) -> dict[type, dict[str, Any]]:
    topics = topics_of(of, "t")
    return {
        KafkaConsumer: member_options(of, topics.group, "t") | reader_options(of, "t"),
        KafkaProducer: producer_options(of, "outcomes", "t", record_bytes_max=1024),
        KafkaAdminClient: admin_options(of, "t"),
    }


def test_servers_are_a_list_or_separated_by_commas() -> None:
    assert settings(bootstrap_servers=" one:9092 , two:9092,").bootstrap_servers == ("one:9092", "two:9092")
    assert settings(bootstrap_servers=["one:9092"]).bootstrap_servers == ("one:9092",)


def test_servers_come_from_the_environment_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    class Settings(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="X_", env_nested_delimiter="__")
        kafka: KafkaSettings

    monkeypatch.setenv("X_KAFKA__BOOTSTRAP_SERVERS", "one:9092,two:9092")
    monkeypatch.setenv("X_KAFKA__API_VERSION", "3.9")
    monkeypatch.setenv("X_KAFKA__SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("X_KAFKA__SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("X_KAFKA__SASL_PLAIN_USERNAME", "me")
    monkeypatch.setenv("X_KAFKA__SASL_PLAIN_PASSWORD", "s3cret")
    read = Settings().kafka  # type: ignore[call-arg]  # from the environment
    assert (read.bootstrap_servers, read.api_version) == (("one:9092", "two:9092"), (3, 9))
    assert "s3cret" not in repr(read)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"bootstrap_servers": ["a b:9092"]}, "is not host:port"),
        ({"bootstrap_servers": ["http://broker:9092"]}, "is not host:port"),
        ({"bootstrap_servers": ["broker:90920"]}, "is not host:port"),
        ({"bootstrap_servers": ["me:s3cret@broker:9092"]}, "must not contain a user or password"),
        ({"heartbeat_interval_ms": 10_000}, "must be at most a third"),
        ({"heartbeat_interval_ms": 20_000}, "must be at most a third"),
        ({"max_poll_interval_ms": 10_000, "session_timeout_ms": 20_000}, "max_poll_interval_ms"),
        ({"reconnect_backoff_ms": 6_000}, "must be at most reconnect_backoff_max_ms"),
        ({"ssl_cafile": "/ca.pem"}, "ssl_cafile needs security_protocol SSL or SASL_SSL: with PLAINTEXT nothing"),
        ({"security_protocol": "SSL", "ssl_keyfile": "/key.pem"}, "ssl_keyfile needs ssl_certfile"),
        ({"security_protocol": "SSL", "ssl_password": "s3cret"}, "ssl_password needs ssl_certfile"),
        ({"sasl_plain_password": "s3cret"}, "need security_protocol SASL_SSL or SASL_PLAINTEXT"),
        ({"heartbeat_interval_ms": 5_000}, "at most a third"),
        ({"fetch_max_wait_ms": 20_000}, "must be below request_timeout_ms"),
        ({"request_timeout_ms": 540_000}, "below connections_max_idle_ms"),
        ({"delivery_timeout_ms": 5_000}, "at least request_timeout_ms"),
        ({"outcomes_retention_ms": 86_400_000}, "at least staged_retention_ms"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism"),
        ({"sasl_mechanism": "PLAIN"}, "needs security_protocol SASL_SSL or SASL_PLAINTEXT"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "needs sasl_plain_username"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "needs sasl_oauth_token_endpoint_url"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "AWS_MSK_IAM"}, "needs security_protocol SASL_SSL"),
        ({"topic_prefix": "a/b"}, "topic_prefix"),
        ({"topics_mode": "make"}, "topics_mode"),
        ({"bootstrap_server": "one:9092"}, "bootstrap_server"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings(**given)


def test_each_setting_is_described() -> None:
    assert issubclass(KafkaSettings, BaseModel)
    assert [n for n, field in KafkaSettings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize("client", [KafkaConsumer, KafkaProducer, KafkaAdminClient])
def test_each_client_gets_only_what_it_knows(client: Any) -> None:
    options = all_options(settings(proxy_url="socks5://localhost:1080", api_version="3.9"))[client]
    assert set(options) <= set(client.DEFAULT_CONFIG)


def test_security_reaches_every_client(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key", "crl"):
        (tmp_path / name).write_text("")
    given = {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(tmp_path / "ca"),
        "ssl_certfile": str(tmp_path / "cert"),
        "ssl_keyfile": str(tmp_path / "key"),
        "ssl_crlfile": str(tmp_path / "crl"),
        "ssl_check_hostname": False,
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "user",
        "sasl_kerberos_domain_name": "kafka.example",
        "client_dns_lookup": "resolve_canonical_bootstrap_servers_only",
    }
    secret = {
        "ssl_password": "of the key",
        "sasl_plain_password": "of the user",
        "proxy_url": "socks5://me:pass@localhost:1080",
    }
    for options in all_options(settings(**given, **secret)).values():
        assert {name: options[name] for name in (*given, *secret)} == given | secret


def test_the_queue_s_promises_do_not_depend_on_defaults() -> None:
    options = all_options(settings())
    consumer, producer = options[KafkaConsumer], options[KafkaProducer]
    assert consumer["enable_auto_commit"] is False
    assert consumer["auto_offset_reset"] == "none"
    assert consumer["isolation_level"] == "read_committed"
    assert "group_instance_id" not in consumer
    assert (producer["acks"], producer["enable_idempotence"]) == ("all", True)
    assert consumer["allow_auto_create_topics"] is False
    assert producer["allow_auto_create_topics"] is False


def test_clients_are_named_after_role_dataset_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "pod 1/é")
    assert client_id("outcomes", "orders") == "committerd-outcomes-orders-pod-1--"


class Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python is untyped
    def token(self) -> str:
        return "token"


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("providers_of_test")
    module.Provider, module.Wrong = Provider, dict  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "providers_of_test", module)


@pytest.mark.usefixtures("providers")
def test_the_token_provider_is_imported() -> None:
    for options in all_options(oauth("providers_of_test:Provider")).values():
        assert options["sasl_oauth_token_provider"].token() == "token"


@pytest.mark.usefixtures("providers")
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere_at_all:Provider", "No module named"),
        ("providers_of_test:Missing", "has no attribute"),
        ("providers_of_test:Wrong", "makes a dict"),
    ],
)
def test_a_token_provider_that_is_none_is_refused(path: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        all_options(oauth(path))


def oauth(path: str) -> KafkaSettings:
    return settings(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=path)


def test_tokens_come_from_an_oauth_server_for_all_clients_of_the_process() -> None:
    given = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_endpoint_url": "https://idp.example.com/token",
        "sasl_oauth_client_id": "me",
        "sasl_oauth_client_secret": "s3cret",
    }
    chosen = settings(**given)
    assert "s3cret" not in repr(chosen)
    providers = {options["sasl_oauth_token_provider"] for options in all_options(chosen).values()}
    assert providers == {writer_options(chosen)["sasl_oauth_token_provider"]}
    with pytest.raises(SettingsError, match="group kafka: sasl_oauth_client_id needs sasl_oauth_client_secret"):
        all_options(settings(**{**given, "sasl_oauth_client_secret": None}))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingsError, match=r"ssl_certfile: there is no file '/nowhere/cert\.pem'"):
        all_options(settings(security_protocol="SSL", ssl_certfile="/nowhere/cert.pem"))


@pytest.mark.parametrize(
    "form", ["BEGIN ENCRYPTED PRIVATE KEY-----", "BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED"]
)
@pytest.mark.parametrize("where", ["ssl_keyfile", "ssl_certfile"])
def test_an_encrypted_key_without_a_password_never_asks_on_the_terminal(form: str, where: str, tmp_path: Path) -> None:
    file, other = tmp_path / "with-key.pem", tmp_path / "certificate.pem"
    file.write_text(f"-----{form}\nMII=\n")
    other.touch()
    given = {"security_protocol": "SSL", "ssl_certfile": str(other), where: str(file)}
    with pytest.raises(SettingsError, match=r"with-key\.pem' is encrypted: set ssl_password"):
        all_options(settings(**given))
    assert all_options(settings(**given, ssl_password="s3cret"))


def test_a_password_comes_from_one_place() -> None:
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "me"}
    with pytest.raises(ValidationError, match="exclude each other"):
        settings(**login, sasl_plain_password="s3cret", sasl_plain_password_file="/secret")
    with pytest.raises(ValidationError, match="needs sasl_plain_username and sasl_plain_password"):
        settings(**login)


def test_an_empty_password_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("\n")
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "me"}
    with pytest.raises(SettingsError, match="is empty"):
        all_options(settings(**login, sasl_plain_password_file=str(tmp_path / "password")))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"security_protocol": "SSL", "ssl_check_hostname": False, "api_version": "3.9", "proxy_url": "socks5://p:1"},
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "u",
            "sasl_plain_password": "s3cret",
        },
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI", "sasl_kerberos_domain_name": "k.example.com"},
    ],
)
def test_a_writer_connects_and_logs_in_as_the_committer_does(given: dict[str, Any]) -> None:
    chosen = settings(**given)
    options = writer_options(chosen)
    CommitClient(chosen.bootstrap_servers, dataset="t", kafka_options=options)  # refuses unknown options
    producer = producer_options(chosen, "outcomes", "t", record_bytes_max=1024)
    for name in given:
        assert options[name] == producer[name]
