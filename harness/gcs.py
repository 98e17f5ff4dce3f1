"""Runs fake-gcs-server, a server of Google Cloud Storage, for tests and the demo, behind `harness.gcs_xml`."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from harness.golang import GoProgram
from harness.server import Server

FAKE_GCS = GoProgram("fake-gcs-server", "v1.56.1", "github.com/fsouza/fake-gcs-server", "fake-gcs-server")


@dataclass(frozen=True, slots=True)
class GcsEndpoint:
    """The URLs of a server, which takes all credentials."""

    scheme: ClassVar[str] = "gs"

    url: str
    """Of the XML API."""
    json_url: str
    """Of the JSON API."""

    @property
    def server(self) -> str:
        """The URL for a proxy."""
        return self.url

    def make_bucket(self) -> str:
        """Create a bucket; returns its name."""
        name = f"committerd-{uuid.uuid4().hex[:12]}"
        self._call("/storage/v1/b?project=tests", {"name": name})
        return name

    def keys(self, bucket: str) -> set[str]:
        """The keys in a bucket."""
        return {one["name"] for one in self._call(f"/storage/v1/b/{bucket}/o").get("items", ())}

    def storage_options(self) -> dict[str, str]:
        """The `storage_options` for pylance."""
        return {"google_service_account_key": self.account_key(), "allow_http": "true"}

    def settings(self) -> dict[str, str]:
        """The settings with which committerd connects to the server."""
        return {"GCS__ENDPOINT_URL": self.url, "GCS__SERVICE_ACCOUNT_KEY": self.account_key()}

    def account_key(self) -> str:
        """The key of a service account that object_store sends without a signature, to this server."""
        return json.dumps(
            {
                "gcs_base_url": self.url,
                "disable_oauth": True,
                "client_email": "",
                "private_key": "",
                "private_key_id": "",
            }
        )

    def through(self, url: str) -> GcsEndpoint:
        """The same server through a proxy at `url`."""
        return GcsEndpoint(url, self.json_url)

    def _call(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.json_url + path, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read())


class FakeGcs(Server):
    """fake-gcs-server, with its objects in memory."""

    name = "fake-gcs-server"

    def command(self, port: int) -> Sequence[str | Path]:
        return [
            FAKE_GCS.built(),
            *("-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}"),
            *("-backend", "memory", "-log-level", "error"),
        ]

    def answers(self) -> bool:
        return _answers(f"{self.url}/storage/v1/b?project=tests")


class _XmlProxy(Server):
    name = "gcs-xml"

    def __init__(self, upstream: str) -> None:
        super().__init__()
        self._upstream = upstream

    def command(self, port: int) -> Sequence[str | Path]:
        return [sys.executable, "-m", "harness.gcs_xml", str(port), self._upstream]

    def answers(self) -> bool:
        return _answers(self.url)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def gcs_server() -> Iterator[GcsEndpoint]:
    """A server of its own, with the proxy. Raises `PartMissingError` if it can't be built."""
    with FakeGcs() as server, _XmlProxy(server.url) as proxy:
        yield GcsEndpoint(proxy.url, server.url)
