"""The settings of the stores for pylance, which `committerd maintain` and `append` open the table with.

committerd reaches S3 through botocore, and pylance through object_store. Each reads settings, environment and AWS
profiles by rules of its own. So what botocore makes of them is found out here, and told to pylance explicitly.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr

from committerd.daemon.producers_file import producer_of_command
from committerd.errors import SettingsError
from committerd.kafka.options import writer_options
from committerd.settings.clouds import CloudSettings
from committerd.settings.load import Settings, StorageSettings
from committerd.stores.cloud import Cloud
from committerd.stores.clouds import cloud_place, cloud_settings

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
TIMES_AND_TRIES = frozenset({"connect_timeout", "read_timeout", "client_max_retries"})
"""Options that every store has, and that say neither where it is nor who may use it."""
_SCHEMES = ("s3", "s3a", "s3n", "s3+ddb")


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """How a client with pylance, in this process, reaches the table and Kafka as the committer does."""

    storage_options: dict[str, str]
    kafka_options: dict[str, Any]


def client_access(settings: Settings) -> ClientAccess:
    """Translate the settings, and set in this process what pylance reads from the environment alone.

    Call it before pylance opens anything. Raises `SettingsError` for a profile or a file that does not exist.
    """
    kafka = _kafka_options(settings)
    return ClientAccess(table_options(settings.dataset.uri, settings), kafka)


def table_options(uri: str, settings: Settings | StorageSettings) -> dict[str, str]:
    """The storage options of the table at `uri`. As `client_access`, without Kafka."""
    cloud = cloud_place(uri)
    if cloud is not None:
        group = cloud_settings(settings)[cloud.cloud]
        if group.ca_bundle is not None:
            _trust(group.ca_bundle, f"{cloud.cloud.service}.ca_bundle")
        return cloud_options(cloud.cloud, group)
    if uri.partition("://")[0].lower() not in _SCHEMES:
        return {}
    session = _session(settings)
    found = _storage_options(uri, settings, session)
    _set_environment(settings, session)
    return found


def _storage_options(uri: str, settings: Settings | StorageSettings, session: Any) -> dict[str, str]:
    """All settings of the group `s3` but `connections_max`, `ca_bundle` and `profile`."""
    from committerd.stores.aws import REGION_OF_A_SERVER, configured_region

    s3 = settings.s3
    endpoint = s3.endpoint_url or _configured_endpoint("s3", session)
    region = configured_region(s3, session) or (REGION_OF_A_SERVER if endpoint else None)
    # As botocore does: the bucket is in the host's name for AWS unless told otherwise, elsewhere only if told so.
    virtual = s3.addressing_style == "virtual" or (endpoint is None and s3.addressing_style == "auto")
    given = {
        "aws_endpoint": _with_bucket(endpoint, uri) if endpoint and virtual else endpoint,
        "aws_region": region,
        "aws_virtual_hosted_style_request": str(virtual).lower(),
        "dynamodb_endpoint": settings.dynamodb.endpoint_url or _configured_endpoint("dynamodb", session),
        "aws_access_key_id": _plain(s3.access_key_id),
        "aws_secret_access_key": _plain(s3.secret_access_key),
        "aws_session_token": _plain(s3.session_token),
        "aws_server_side_encryption": s3.server_side_encryption,
        "aws_sse_kms_key_id": s3.sse_kms_key_id,
        "aws_checksum_algorithm": s3.checksum_algorithm and s3.checksum_algorithm.lower(),
        "connect_timeout": _milliseconds(s3.connect_timeout_seconds),
        "read_timeout": _milliseconds(s3.read_timeout_seconds),
        "client_max_retries": str(s3.attempts - 1),
        "allow_http": "true" if endpoint and endpoint.startswith("http://") else None,
        "allow_invalid_certificates": None if s3.tls_verify else "true",
    }
    return {name: value for name, value in given.items() if value is not None}


def cloud_options(cloud: Cloud, settings: CloudSettings) -> dict[str, str]:
    """The storage options for pylance: all settings of a cloud but `connections_max` and `ca_bundle`.

    committerd and pylance use the same crate, which reads what is not set from the environment.
    """
    given = {
        **cloud.options(settings),
        "connect_timeout": _milliseconds(settings.connect_timeout_seconds),
        "read_timeout": _milliseconds(settings.read_timeout_seconds),
        "client_max_retries": str(settings.attempts - 1),
        "allow_http": "true" if (settings.endpoint_url or "").startswith("http://") else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _set_environment(settings: Settings | StorageSettings, session: Any) -> None:
    """The authorities and the profile. The settings win over the environment, as they do in the committer."""
    s3 = settings.s3
    bundle = s3.ca_bundle or session.get_config_variable("ca_bundle")
    if bundle is not None:
        _trust(bundle, "s3.ca_bundle (or AWS_CA_BUNDLE)")
    if s3.profile is not None or s3.access_key_id is not None:
        # botocore ignores them then; pylance would take what is missing from them.
        for name in _CREDENTIALS:
            os.environ.pop(name, None)
    if s3.profile is not None:
        os.environ["AWS_PROFILE"] = s3.profile


def _trust(bundle: str, setting: str) -> None:
    """Let pylance take these authorities, and no others. `setting`: which one names the file, for the message."""
    if not os.path.isfile(bundle):
        raise SettingsError(f"{setting}: there is no file {bundle!r}")
    os.environ["SSL_CERT_FILE"] = bundle  # rustls-native-certs, in pylance, reads it


def _kafka_options(settings: Settings) -> dict[str, Any]:
    """Name the authorities of Kafka's certificates explicitly, because `SSL_CERT_FILE` would be theirs too."""
    options = writer_options(settings.kafka)
    usual = ssl.get_default_verify_paths().cafile
    if settings.kafka.security_protocol.endswith("SSL") and usual is not None:
        options.setdefault("ssl_cafile", usual)
    return options


def _session(settings: Settings | StorageSettings) -> Any:
    """A session of botocore: what it knows of environment and profile."""
    from botocore.exceptions import ProfileNotFound
    from botocore.session import Session

    session = Session(profile=settings.s3.profile)
    try:
        session.get_scoped_config()
    except ProfileNotFound as error:
        raise SettingsError(f"s3.profile: {error}") from error
    return session


def _configured_endpoint(service: str, session: Any) -> str | None:
    """The service's URL by environment or profile, in botocore's order. Source: AWS' page on service endpoints."""
    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return None
    profile = session.get_scoped_config()
    own = session.full_config.get("services", {}).get(profile.get("services"), {}).get(service, {})
    found = (
        os.environ.get(f"AWS_ENDPOINT_URL_{service.upper()}")
        or os.environ.get("AWS_ENDPOINT_URL")
        or own.get("endpoint_url")
        or profile.get("endpoint_url")
    )
    return None if found is None else str(found)


def _with_bucket(endpoint: str, uri: str) -> str:
    """The endpoint with the bucket in its host, which object_store expects of virtual-hosted-style URLs."""
    from committerd.stores.s3 import s3_place

    place = s3_place(f"s3://{uri.partition('://')[2].partition('?')[0]}")
    assert place is not None
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(netloc=f"{place.bucket}.{parts.netloc}"))


def _plain(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def client_options(configured: Settings, access: ClientAccess, *, producer: str) -> dict[str, Any]:
    """The options of a client by which a command commits to the dataset, as this producer.

    It signs its records where the settings have the producer's key. Raises as `producer_of_command`
    does.
    """
    signing = producer_of_command(configured.commit.producers_file, producer)
    return {
        "dataset": configured.dataset.name,
        "topic_prefix": configured.kafka.topic_prefix,
        "group_prefix": configured.kafka.group_prefix,
        "group": configured.kafka.group,
        "dataset_uri": configured.dataset.uri,
        "branch": configured.dataset.branch,
        "storage_options": access.storage_options,
        "producer": producer,
        "producer_key": None if signing is None else signing.key,
        "kafka_options": access.kafka_options,
    }
