"""A Kafka with an authorizer, and with a listener for each way to encrypt and to log in.

Each way with a login leads to the same two users, `committer` and `writer`, who may do what ACLs allow. A client that
comes without a login, by TLS or without encryption to the first listener, is an administrator.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from committerd.dev.parts import free_ports
from harness.certificates import Authority
from harness.kafka import KafkaBroker
from harness.oidc import AUDIENCE, OidcServer

PASSWORDS = {"committer": "of-the-committer/+=%", "writer": "known-to-all"}
"""Of the users, for PLAIN, SCRAM and as secrets for OAUTHBEARER."""
Way = Literal["TLS", "mTLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
_MODULES = "org.apache.kafka.common.security"


class SecuredKafka:
    """The broker, its authority and its provider of tokens; `secured_kafka` makes it."""

    def __init__(
        self, broker: KafkaBroker, authority: Authority, oidc: OidcServer, *, folder: Path, ports: Sequence[int]
    ):
        self.broker = broker
        self.authority = authority
        self.oidc = oidc
        self.folder = folder
        """With the files of the certificates: NAME.pem and NAME.key."""
        _, _, self._tls, self._mtls, self._logins = ports

    @property
    def bootstrap_servers(self) -> str:
        """For administrators."""
        return self.broker.bootstrap_servers

    def servers(self, way: Way) -> str:
        """The address for those who come this way."""
        port = {"TLS": self._tls, "mTLS": self._mtls}.get(way, self._logins)
        return f"127.0.0.1:{port}"

    def options(self, way: Way, user: str = "committer") -> dict[str, str]:
        """Settings of group `kafka` without the servers; a client's `kafka_options` have the same names."""
        options = {"security_protocol": "SSL", "ssl_cafile": str(self.authority.file)}
        if way == "TLS":
            return options
        if way == "mTLS":
            pair = {"ssl_certfile": str(self.folder / f"{user}.pem"), "ssl_keyfile": str(self.folder / f"{user}.key")}
            return {**options, **pair}
        options |= {"security_protocol": "SASL_SSL", "sasl_mechanism": way}
        if way != "OAUTHBEARER":
            return {**options, "sasl_plain_username": user, "sasl_plain_password": PASSWORDS[user]}
        return {
            **options,
            "sasl_oauth_token_endpoint_url": self.oidc.token_url,
            "sasl_oauth_client_id": user,
            "sasl_oauth_client_secret": PASSWORDS[user],
            "sasl_oauth_scope": "kafka",
            "sasl_oauth_cafile": str(self.authority.file),
        }

    def settings(self, way: Way, user: str = "committer") -> dict[str, str]:
        """The same as environment names without the prefix, with the servers."""
        options = {"bootstrap_servers": self.servers(way), **self.options(way, user)}
        return {f"KAFKA__{name.upper()}": value for name, value in options.items()}


@contextmanager
def secured_kafka() -> Iterator[SecuredKafka]:
    """Run it. Raises `PartMissingError` if there is no Java."""
    with tempfile.TemporaryDirectory(prefix="committerd-certificates-") as name:
        folder = Path(name)
        authority = Authority(folder)
        own = authority.issue("broker", "localhost", "127.0.0.1")
        for user in PASSWORDS:
            authority.issue(user)
        plain, controller, *secured = ports = free_ports(5)
        with OidcServer(authority, folder) as oidc:
            oidc.secrets.update(PASSWORDS)
            settings = _settings(ports, key_store=own.joined(), trusted=authority.file, oidc=oidc)
            allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={oidc.keys_url}"
            with KafkaBroker(
                settings=settings, ports=[plain, controller, secured[0]], java_options=[allowed]
            ) as broker:
                admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
                for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                    admin.alter_user_scram_credentials(
                        [UserScramCredentialUpsertion(user, mechanism, word) for user, word in PASSWORDS.items()]
                    )
                admin.close()
                yield SecuredKafka(broker, authority, oidc, folder=folder, ports=ports)


def _settings(ports: Sequence[int], *, key_store: Path, trusted: Path, oidc: OidcServer) -> Mapping[str, str]:
    plain, controller, tls, mtls, logins = ports
    names = {"PLAINTEXT": plain, "TLS": tls, "MTLS": mtls, "LOGINS": logins}
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in names.items())
    users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    login = "listener.name.logins"
    return {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": ("PLAINTEXT:PLAINTEXT,TLS:SSL,MTLS:SSL,LOGINS:SASL_SSL,CONTROLLER:PLAINTEXT"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(key_store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.mtls.ssl.principal.mapping.rules": "RULE:^.*CN=([^,]*).*$/$1/,DEFAULT",
        f"{login}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{login}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required {users};",
        f"{login}.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        f"{login}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        f"{login}.oauthbearer.sasl.jaas.config": (
            # The claim is for connections from broker to broker, which nobody makes here; Kafka asks for it.
            f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker" '
            f'ssl.truststore.type="PEM" ssl.truststore.location="{trusted}";'
        ),
        f"{login}.oauthbearer.sasl.server.callback.handler.class": (
            f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        # A login ends with its token.
        f"{login}.oauthbearer.connections.max.reauth.ms": "3600000",
        "sasl.oauthbearer.jwks.endpoint.url": oidc.keys_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": oidc.issuer,
    }
