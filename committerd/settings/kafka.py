"""Group `kafka` of the settings: how to connect to Kafka, how to log in, how to create its topics.

The names are those of kafka-python, which are mostly Kafka's own, so Kafka's documentation applies. Times are in
milliseconds, as in Kafka.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from committerd.settings.group import MIB, Listed, SettingsGroup

DAY_MS = 24 * 60 * 60 * 1000
_NAME_PART = r"^[A-Za-z0-9._-]*$"  # Kafka: Topic.java, LEGAL_CHARS
_SERVER = re.compile(r"^(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s,/@:\[\]]+|[0-9A-Fa-f:]+)(?::(?P<port>\d{1,5}))?$")


def _is_server(text: str) -> bool:
    found = _SERVER.match(text)
    return found is not None and (found["port"] is None or 0 < int(found["port"]) < 65536)


def _version(value: Any) -> Any:
    """Convert `3.9`, or the JSON list `[3, 9]`, to (3, 9)."""
    if isinstance(value, str):
        text = value.strip()
        return tuple(part.strip() for part in text[1:-1].split(",")) if text[:1] == "[" else tuple(text.split("."))
    return value


class KafkaSettings(SettingsGroup):
    """How to reach Kafka and how to use it."""

    bootstrap_servers: Listed = Field(
        min_length=1,
        description="Brokers to contact first, host:port, separated by commas; they name the others.",
    )
    topic_prefix: str = Field(
        default="",
        pattern=_NAME_PART,
        max_length=100,
        description="Prefix of the names of the dataset's topics: {prefix}{name}.staged, .outcomes, .dead and, with "
        "change_events, .events.",
    )
    group_prefix: str = Field(
        default="committerd.",
        pattern=_NAME_PART,
        max_length=100,
        description="Prefix of the name of the dataset's consumer group, {prefix}{name}. Committers "
        "of one dataset must share the group: one of them is active, the others stand by.",
    )
    group: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]+$",
        max_length=200,
        description="Name of the consumer group, in place of {group_prefix}{name}. Processes for many datasets need "
        "it: those that name the same group share the datasets out among themselves.",
    )

    # Topics
    topics_mode: Literal["create", "check"] = Field(
        default="create",
        description="At start: create the topics that are missing and check the others, or only "
        "check. committerd refuses what endangers data (a second partition, compaction, short retention).",
    )
    outcome_partitions: int = Field(
        default=8,
        ge=1,
        le=1000,
        description="Partitions of the outcomes topic when it is created; each producer reads one.",
    )
    replication_factor: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="Replicas of each topic that is created; unset: three, or as many as there are brokers.",
    )
    staged_retention_ms: int = Field(
        default=14 * DAY_MS,
        ge=DAY_MS // 24,
        description="How long Kafka keeps staged records, whether committed or not. It must exceed "
        "the longest outage: a record that Kafka deletes unread is lost.",
    )
    outcomes_retention_ms: int = Field(
        default=14 * DAY_MS,
        ge=DAY_MS // 24,
        description="How long outcomes are kept; at least as long as staged records.",
    )
    dead_retention_ms: int = Field(default=30 * DAY_MS, ge=DAY_MS // 24, description="How long dead letters are kept.")
    change_events: bool = Field(
        default=False,
        description="Publish an event for each version of the table, whoever has committed it, to the topic "
        "{topic_prefix}{name}.events.",
    )
    events_retention_ms: int = Field(
        default=14 * DAY_MS, ge=DAY_MS // 24, description="How long change events are kept."
    )
    max_record_bytes: int = Field(
        default=MIB,
        ge=64 * 1024,
        le=64 * MIB,
        description="Largest staged record that the topic takes (max.message.bytes of a topic "
        "that is created). Larger transactions go to storage, and a claim check to the topic.",
    )

    # Membership of the group
    session_timeout_ms: int = Field(
        default=10_000,
        ge=1_000,
        description="If Kafka does not hear of a committer for this long, it gives the topic to a "
        "standby. Kafka's own lower limit is 6000 (group.min.session.timeout.ms).",
    )
    heartbeat_interval_ms: int = Field(
        default=300,
        ge=100,
        description="Time between heartbeats: at most a third of the session timeout. A standby learns at its next "
        "heartbeat that it has to take over.",
    )
    max_poll_interval_ms: int = Field(
        default=300_000,
        ge=10_000,
        description="If the Kafka thread of a committer hangs for this long, the committer leaves the group.",
    )

    # Fetching, and how much may wait
    fetch_max_wait_ms: int = Field(
        default=500,
        ge=1,
        description="How long a broker waits before it replies that there is nothing new. It delivers a new "
        "record at once. While a producer has staged more than a committer holds, the broker waits more briefly.",
    )
    fetch_max_bytes: int = Field(default=50 * MIB, ge=MIB, description="Approximate bytes in one reply of a broker.")
    outstanding_records_max: int = Field(
        default=10_000,
        ge=4,
        description="Stop fetching while this many delivered records have no outcome. A committer keeps three "
        "quarters of them while they wait, at most half of that of one producer, and reads on for the others.",
    )
    outstanding_bytes_max: int = Field(
        default=64 * MIB,
        ge=MIB,
        description="Stop fetching while delivered records of this many bytes have no outcome; shares as of "
        "`outstanding_records_max`.",
    )

    # Time limits
    bootstrap_timeout_ms: int = Field(
        default=60_000,
        ge=1_000,
        description="How long a start waits for a broker to respond and for the topics to be ready, before the process "
        "ends with an error.",
    )
    request_timeout_ms: int = Field(
        default=7_000,
        ge=1_000,
        description="How long one request to a broker may take. If a reply is lost, its caller waits this long.",
    )
    delivery_timeout_ms: int = Field(
        default=30_000,
        ge=2_000,
        description="How long publishing may take, with its retries, before it counts as failed and starts anew.",
    )
    metadata_max_age_ms: int = Field(
        default=60_000, ge=1_000, description="Time after which the client reads the cluster's metadata again."
    )
    topics_recheck_seconds: float = Field(
        default=300.0,
        ge=1,
        le=86_400,
        description="Time between two checks of the topics' settings while a committer runs. The committer logs and "
        "counts problems.",
    )
    reconnect_backoff_ms: int = Field(
        default=50,
        ge=1,
        description="First wait before connecting again to a broker that failed; it doubles each time.",
    )
    reconnect_backoff_max_ms: int = Field(
        default=1_000, ge=1, description="Longest wait before connecting again to a broker that failed."
    )
    connections_max_idle_ms: int = Field(
        default=540_000,
        ge=10_000,
        description="Close a connection after this much idle time; keep it below the broker's own limit.",
    )

    # Security
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="Encryption (SSL) and login (SASL) of the connection."
    )
    ssl_cafile: str | None = Field(
        default=None,
        description="PEM file of the authorities that signed the brokers' certificates.",
    )
    ssl_certfile: str | None = Field(default=None, description="PEM file of the client's certificate, for mutual TLS.")
    ssl_keyfile: str | None = Field(default=None, description="PEM file of the client's private key, for mutual TLS.")
    ssl_password: SecretStr | None = Field(default=None, description="Password of the private key.")
    ssl_check_hostname: bool = Field(default=True, description="Refuse a broker whose certificate is for another host.")
    ssl_crlfile: str | None = Field(default=None, description="PEM file of revoked certificates.")
    sasl_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"] | None
    ) = Field(
        default=None,
        description="How to log in. AWS_MSK_IAM takes the region from AWS_DEFAULT_REGION or the "
        "profile, not from AWS_REGION.",
    )
    sasl_plain_username: str | None = Field(default=None, description="User for PLAIN and SCRAM.")
    sasl_plain_password: SecretStr | None = Field(default=None, description="Password for PLAIN and SCRAM.")
    sasl_plain_password_file: str | None = Field(
        default=None,
        description="File with the password for PLAIN and SCRAM, in place of sasl_plain_password. It is read at each "
        "login, so a new password needs no restart.",
    )
    sasl_kerberos_service_name: str = Field(
        default="kafka", description="Service name in the brokers' Kerberos principal (GSSAPI)."
    )
    sasl_kerberos_domain_name: str | None = Field(
        default=None, description="Host name in the brokers' Kerberos principal (GSSAPI)."
    )
    sasl_oauth_token_provider: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="module:name of a class without arguments, or of a function, that makes a "
        "kafka.net.sasl.oauth.AbstractTokenProvider (OAUTHBEARER).",
    )
    sasl_oauth_token_endpoint_url: str | None = Field(
        default=None,
        description="Address at which an OAuth server gives tokens for client credentials (OAUTHBEARER), in place of a "
        "provider of your own: https://idp.example.com/oauth2/token. The first login "
        "after 80 % of a token's life asks for another.",
    )
    sasl_oauth_client_id: str | None = Field(default=None, description="The client's id at the OAuth server.")
    sasl_oauth_client_secret: SecretStr | None = Field(
        default=None, description="The client's secret at the OAuth server."
    )
    sasl_oauth_client_secret_file: str | None = Field(
        default=None,
        description="File with the client's secret, in place of sasl_oauth_client_secret. It is read for each token, "
        "so a new secret needs no restart.",
    )
    sasl_oauth_scope: str | None = Field(
        default=None, description="Scope of the tokens; several are separated by spaces. Unset: that of the server."
    )
    sasl_oauth_cafile: str | None = Field(
        default=None,
        description="PEM file of the authorities that signed the OAuth server's certificate; unset: the machine's.",
    )
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] = Field(
        default="use_all_dns_ips",
        description="Whether bootstrap names are resolved to canonical ones (Kerberos).",
    )
    proxy_url: SecretStr | None = Field(
        default=None,
        description="Proxy to connect through: socks5://host:port, or with a login socks5://user:password@host:port; "
        "socks5h if it resolves the brokers' names, http for one that knows CONNECT.",
    )
    api_version: Annotated[tuple[int, ...] | None, NoDecode, BeforeValidator(_version)] = Field(
        default=None,
        min_length=2,
        max_length=3,
        description="Version of the brokers, such as 3.9; unset: the client asks them for it.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if any("@" in server for server in self.bootstrap_servers):
            raise ValueError(
                "bootstrap_servers: must not contain a user or password (before the @): set sasl_plain_username and "
                "sasl_plain_password"
            )
        wrong = [server for server in self.bootstrap_servers if not _is_server(server)]
        if wrong:
            raise ValueError(f"bootstrap_servers: {wrong[0]!r} is not host:port")
        if self.reconnect_backoff_ms > self.reconnect_backoff_max_ms:
            raise ValueError(
                f"reconnect_backoff_ms ({self.reconnect_backoff_ms}) must be at most reconnect_backoff_max_ms "
                f"({self.reconnect_backoff_max_ms})"
            )
        if self.max_poll_interval_ms < self.session_timeout_ms:
            raise ValueError(
                f"max_poll_interval_ms ({self.max_poll_interval_ms}) must be at least session_timeout_ms "
                f"({self.session_timeout_ms})"
            )
        if self.heartbeat_interval_ms * 3 > self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be at most a third of "
                f"session_timeout_ms ({self.session_timeout_ms})"
            )
        if not self.fetch_max_wait_ms < self.request_timeout_ms < self.connections_max_idle_ms:
            raise ValueError(
                f"fetch_max_wait_ms ({self.fetch_max_wait_ms}) must be below request_timeout_ms "
                f"({self.request_timeout_ms}), and that below connections_max_idle_ms "
                f"({self.connections_max_idle_ms})"
            )
        if self.delivery_timeout_ms < self.request_timeout_ms:
            raise ValueError(
                f"delivery_timeout_ms ({self.delivery_timeout_ms}) must be at least "
                f"request_timeout_ms ({self.request_timeout_ms})"
            )
        if self.outcomes_retention_ms < self.staged_retention_ms:
            raise ValueError(
                f"outcomes_retention_ms ({self.outcomes_retention_ms}) must be at least "
                f"staged_retention_ms ({self.staged_retention_ms})"
            )
        return self

    @model_validator(mode="after")
    def _encryption_is_meant(self) -> Self:
        given = [
            name
            for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_crlfile")
            if getattr(self, name) is not None
        ]
        if given and not self.security_protocol.endswith("SSL"):
            raise ValueError(
                f"{given[0]} needs security_protocol SSL or SASL_SSL: with {self.security_protocol} nothing is "
                "encrypted"
            )
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError("ssl_keyfile needs ssl_certfile, the certificate that belongs to the key")
        if self.ssl_password is not None and self.ssl_certfile is None:
            raise ValueError("ssl_password needs ssl_certfile, the certificate whose key it decrypts")
        return self

    @model_validator(mode="after")
    def _login_is_complete(self) -> Self:
        passwords = self.sasl_plain_password, self.sasl_plain_password_file
        if None not in passwords:
            raise ValueError("sasl_plain_password and sasl_plain_password_file exclude each other: set one of them")
        login = self.sasl_plain_username is not None or passwords != (None, None)
        if login and not self.security_protocol.startswith("SASL_"):
            raise ValueError(
                "sasl_plain_username, sasl_plain_password and its file need security_protocol SASL_SSL or "
                f"SASL_PLAINTEXT, not {self.security_protocol}: otherwise they are not used"
            )
        if not self.security_protocol.startswith("SASL_"):
            if self.sasl_mechanism is not None:
                raise ValueError(
                    f"sasl_mechanism needs security_protocol SASL_SSL or SASL_PLAINTEXT, not {self.security_protocol}"
                )
            return self
        mechanism = self.sasl_mechanism
        if mechanism is None:
            raise ValueError(f"security_protocol {self.security_protocol} needs sasl_mechanism")
        if mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512") and (
            self.sasl_plain_username is None or passwords == (None, None)
        ):
            raise ValueError(
                f"sasl_mechanism {mechanism} needs sasl_plain_username and sasl_plain_password (or its file)"
            )
        tokens = self.sasl_oauth_token_provider, self.sasl_oauth_token_endpoint_url
        if mechanism == "OAUTHBEARER" and tokens == (None, None):
            raise ValueError(
                "sasl_mechanism OAUTHBEARER needs sasl_oauth_token_endpoint_url (with sasl_oauth_client_id and its "
                "secret), or sasl_oauth_token_provider"
            )
        if mechanism == "AWS_MSK_IAM" and self.security_protocol != "SASL_SSL":
            raise ValueError("sasl_mechanism AWS_MSK_IAM needs security_protocol SASL_SSL")
        return self
