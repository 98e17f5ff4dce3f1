"""Azure and Google Cloud Storage behind TLS, with a certificate of a private authority."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from committerd.errors import PutUnknown, SettingsError, StoreUnavailable
from committerd.stores.clouds import cloud_place
from committerd.stores.obstore_store import ObstoreClient, ObstoreStore
from committerd.stores.probing import probe
from committerd.stores.retries import Fault
from harness.azure import AzureEndpoint
from harness.gcs import GcsEndpoint
from harness.places import cloud_group
from harness.tls import TlsFront


class Encrypted:
    """A container of a cloud, behind TLS."""

    def __init__(self, cloud: str, server: AzureEndpoint | GcsEndpoint, front: TlsFront) -> None:
        self.cloud, self.server, self.front = cloud, server, front
        self.uri = f"{server.scheme}://{server.make_bucket()}/t.lance"
        self.faults: list[Fault] = []

    def opened(self, ca_bundle: str | Path | None, *, url: str = "") -> ObstoreStore:
        place = cloud_place(self.uri)
        assert place is not None
        more = {} if ca_bundle is None else {"ca_bundle": str(ca_bundle)}
        cloud, settings = cloud_group(self.server.through(url or self.front.url), attempts=1, **more)
        client = ObstoreClient(cloud, place.root, settings)
        return ObstoreStore(client, place, failed=self.faults.append)


@pytest.fixture(
    scope="module",
    params=[pytest.param("azure", marks=pytest.mark.azure), pytest.param("gcs", marks=pytest.mark.gcs)],
)
def encrypted(request: pytest.FixtureRequest) -> Iterator[Encrypted]:
    server: AzureEndpoint | GcsEndpoint = request.getfixturevalue(request.param)
    with TlsFront(server.server) as front:
        yield Encrypted(request.param, server, front)


async def test_a_certificate_of_the_bundles_authority_is_taken(encrypted: Encrypted, tmp_path: Path) -> None:
    bundle = tmp_path / "several.pem"
    bundle.write_bytes(trustme.CA().cert_pem.bytes() + encrypted.front.authorities.read_bytes())
    for authorities in (encrypted.front.authorities, bundle):
        store = encrypted.opened(authorities)
        checks = await probe(store, now=datetime.now(UTC), new_uuid=uuid.uuid4)
        assert [check.fault for check in checks] == [""] * 5


async def test_a_certificate_of_another_authority_is_refused_and_the_message_says_what_to_do(
    encrypted: Encrypted, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(trustme.CA().cert_pem.bytes())
    encrypted.faults.clear()
    for bundle in (None, other):
        store = encrypted.opened(bundle)
        for request in (store.get("o"), store.put_if_absent("_versions/1.manifest", b"ours")):
            with pytest.raises(StoreUnavailable, match=r"certificate is refused \(UnknownIssuer\)") as caught:
                await request
            assert not isinstance(caught.value, PutUnknown), "nothing was sent"
            assert f"set {encrypted.cloud}.ca_bundle to the file of that authority" in str(caught.value)
    assert encrypted.faults == [Fault.CONNECTION] * 4


async def test_a_certificate_of_another_host_is_refused(encrypted: Encrypted) -> None:
    store = encrypted.opened(encrypted.front.authorities, url=encrypted.front.url.replace("localhost", "127.0.0.1"))
    with pytest.raises(StoreUnavailable, match=rf"of another host: correct {encrypted.cloud}\.endpoint_url"):
        await store.get("o")


def test_a_bundle_that_is_none_is_a_wrong_setting(encrypted: Encrypted, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"{encrypted.cloud}\.ca_bundle: .*can't be read: No such file"):
        encrypted.opened(tmp_path / "nothing.pem")
    (tmp_path / "empty.pem").write_text("no certificate")
    with pytest.raises(SettingsError, match="No certificates found"):
        encrypted.opened(tmp_path / "empty.pem")
