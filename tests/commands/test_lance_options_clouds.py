"""Whatever settings and environment say of a cloud, pylance in `maintain` and `append` does as the committer.

Each case is a process of its own, because pylance reads the environment once: pylance writes a table, and committerd's
own store reads it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from committerd.commands.lance_options import client_access, cloud_options
from committerd.errors import SettingsError
from committerd.settings.clouds import AzureSettings, GcsSettings
from committerd.settings.load import load_settings
from committerd.stores.azure import AZURE
from committerd.stores.gcs import GCS
from harness.azure import AzureEndpoint
from harness.gcs import GcsEndpoint
from harness.tls import TlsFront

pytestmark = [pytest.mark.pylance]

_PROGRAM = """
import os, anyio, lance, pyarrow as pa
from committerd.commands.lance_options import client_access
from committerd.commands.system import stores_of
from committerd.settings.load import load_settings

settings = load_settings()
uri = settings.dataset.uri
table = lance.write_dataset(pa.table({"id": [1, 2, 3]}), uri, storage_options=client_access(settings).storage_options)

async def main():
    async with stores_of(settings) as stores:
        assert len(await stores.open(uri).list("_versions/")) == table.version == 1

anyio.run(main)
print("good", flush=True)
os._exit(0)  # obstore's threads may be in the middle of a call
"""
_WRONG = {"AZURE_STORAGE_ACCOUNT_NAME": "nobody", "AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}


def run(uri: str, environment: Mapping[str, str]) -> str:
    """Run the program with this environment, without any other variable of a cloud or of committerd."""
    rest = {
        name: value for name, value in os.environ.items() if not name.startswith(("AZURE_", "GOOGLE_", "COMMITTERD_"))
    }
    given = {
        "COMMITTERD_DATASET__NAME": "t",
        "COMMITTERD_DATASET__URI": uri,
        "COMMITTERD_KAFKA__BOOTSTRAP_SERVERS": "a:1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=rest | given | dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    return str(done.stdout.strip() or done.stderr)


@pytest.mark.azure
@pytest.mark.parametrize("case", ["settings", "signature", "environment"])
def test_pylance_reaches_azure_as_the_committer_does(azure: AzureEndpoint, case: str) -> None:
    container = azure.make_bucket()
    name, key, url = (f"COMMITTERD_AZURE__{one}" for one in ("ACCOUNT_NAME", "ACCOUNT_KEY", "ENDPOINT_URL"))
    environments: dict[str, dict[str, str]] = {
        "settings": _WRONG | {name: azure.account, key: azure.key},
        "signature": _WRONG | {name: azure.account, "COMMITTERD_AZURE__SAS_TOKEN": azure.signature(container)},
        "environment": {"AZURE_STORAGE_ACCOUNT_NAME": azure.account, "AZURE_STORAGE_ACCOUNT_KEY": azure.key},
    }
    assert run(f"az://{container}/t.lance", {url: azure.url} | environments[case]) == "good"


@pytest.mark.gcs
def test_pylance_reaches_google_cloud_storage_as_the_committer_does(gcs: GcsEndpoint) -> None:
    given = {f"COMMITTERD_{name}": value for name, value in gcs.settings().items()}
    assert run(f"gs://{gcs.make_bucket()}/t.lance", given) == "good"


@pytest.mark.parametrize(
    "server",
    [pytest.param("azure", marks=pytest.mark.azure), pytest.param("gcs", marks=pytest.mark.gcs)],
)
def test_pylance_takes_the_authorities_that_the_committer_takes(server: str, request: pytest.FixtureRequest) -> None:
    cloud: AzureEndpoint | GcsEndpoint = request.getfixturevalue(server)
    uri = f"{cloud.scheme}://{cloud.make_bucket()}/t.lance"
    with TlsFront(cloud.server) as front:
        encrypted = {f"COMMITTERD_{name}": value for name, value in cloud.through(front.url).settings().items()}
        authorities = {f"COMMITTERD_{server.upper()}__CA_BUNDLE": str(front.authorities)}
        assert run(uri, encrypted | authorities) == "good"


@pytest.mark.parametrize("server", ["azure", "gcs"])
def test_a_bundle_that_is_not_there_is_named(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"COMMITTERD_{server.upper()}__CA_BUNDLE", "/no/such.pem")
    uri = {"azure": "az://lake/t.lance", "gcs": "gs://lake/t.lance"}[server]
    settings = load_settings(dataset={"name": "t", "uri": uri}, kafka={"bootstrap_servers": "a:1"})
    with pytest.raises(SettingsError, match=rf"{server}\.ca_bundle: there is no file '/no/such\.pem'"):
        client_access(settings)


@pytest.mark.parametrize(("cloud", "group"), [(AZURE, AzureSettings), (GCS, GcsSettings)])
def test_each_setting_is_translated_or_is_the_committers_own(cloud: object, group: type[AzureSettings]) -> None:
    assert cloud in (AZURE, GCS)
    nothing = cloud_options(AZURE if cloud is AZURE else GCS, group())
    assert nothing.keys() == {"connect_timeout", "read_timeout", "client_max_retries"}
    for name, field in group.model_fields.items():
        if name in ("ca_bundle", "connections_max"):  # authorities are in the environment; the committer's own
            continue
        value = {"attempts": 7, "endpoint_url": "http://host:1"}.get(name, 7 if field.annotation is float else "given")
        translated = cloud_options(AZURE if cloud is AZURE else GCS, group.model_validate({name: value}))
        assert translated != nothing, name
