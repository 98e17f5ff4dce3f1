"""Runs Azurite, Microsoft's server of Azure Blob Storage, for tests and the demo."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import secrets
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

from harness import node
from harness.server import Server

AZURITE = node.NodeProgram("azurite", "3.35.0", ".bin/azurite-blob")
_VERSION = "2023-11-03"
"""The version of Azure's protocol."""


@dataclass(frozen=True, slots=True)
class AzureEndpoint:
    """The URL and key of a storage account."""

    scheme: ClassVar[str] = "az"

    url: str
    """With the account as its path, as Azurite has it."""
    account: str
    key: str = field(repr=False)

    @property
    def server(self) -> str:
        """The URL without the account."""
        return self.url.removesuffix(f"/{self.account}")

    def make_bucket(self) -> str:
        """Create a container; returns its name."""
        name = f"committerd-{uuid.uuid4().hex[:12]}"
        self.call("PUT", f"/{name}", {"restype": "container"})
        return name

    def keys(self, container: str) -> set[str]:
        """The keys in a container of at most 5,000."""
        body = self.call("GET", f"/{container}", {"restype": "container", "comp": "list"})
        return {str(one.text) for one in ElementTree.fromstring(body).iterfind("Blobs/Blob/Name")}

    def storage_options(self) -> dict[str, str]:
        """The `storage_options` for pylance."""
        return {
            "azure_storage_account_name": self.account,
            "azure_storage_account_key": self.key,
            "azure_storage_endpoint": self.url,
            "allow_http": "true",
        }

    def settings(self) -> dict[str, str]:
        """The settings with which committerd connects to the server."""
        return {
            "AZURE__ENDPOINT_URL": self.url,
            "AZURE__ACCOUNT_NAME": self.account,
            "AZURE__ACCOUNT_KEY": self.key,
        }

    def signature(self, container: str) -> str:
        """A shared access signature with which a committer can work in a container, for an hour.

        Source: Azure's page "Create a service SAS", version 2020-12-06.
        """
        end = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        permissions, version = "rcwdl", "2020-12-06"
        lines = [permissions, "", end, f"/blob/{self.account}/{container}", "", "", "", version, "c", *[""] * 7]
        sent = {"sp": permissions, "se": end, "sv": version, "sr": "c", "sig": self._signed(lines)}
        return urllib.parse.urlencode(sent)

    def through(self, url: str) -> AzureEndpoint:
        """The same account through a proxy at `url`."""
        return AzureEndpoint(f"{url}/{self.account}", self.account, self.key)

    def call(self, method: str, path: str, query: Mapping[str, str]) -> bytes:
        """Send a request without a body, signed with the key. Returns the body; raises `urllib.error.URLError`.

        Source: Azure's page "Authorize with Shared Key".
        """
        headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": _VERSION}
        resource = f"/{self.account}{urllib.parse.urlsplit(self.url).path}{path}"
        lines = [
            method,
            *[""] * 11,
            *(f"{name}:{value}" for name, value in sorted(headers.items())),
            resource,
            *(f"{name}:{value}" for name, value in sorted(query.items())),
        ]
        headers["Authorization"] = f"SharedKey {self.account}:{self._signed(lines)}"
        request = urllib.request.Request(
            f"{self.url}{path}?{urllib.parse.urlencode(query)}",
            method=method,
            headers={**headers, "Content-Length": "0"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            body: bytes = response.read()
            return body

    def _signed(self, lines: Sequence[str]) -> str:
        digest = hmac.new(base64.b64decode(self.key), "\n".join(lines).encode(), hashlib.sha256).digest()
        return base64.b64encode(digest).decode()


class Azurite(Server):
    """Azurite on a folder, with one account."""

    name = "azurite"

    def __init__(self) -> None:
        super().__init__()
        self.account = f"account{secrets.token_hex(4)}"
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()

    @property
    def endpoint(self) -> AzureEndpoint:
        """The URL and key of its account."""
        return AzureEndpoint(f"{self.url}/{self.account}", self.account, self.key)

    def command(self, port: int) -> Sequence[str | Path]:
        return [
            AZURITE.installed(),
            *("--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", self.folder / "data"),
            *("--silent", "--disableTelemetry", "--skipApiVersionCheck", "--disableProductStyleUrl"),
        ]

    def environment(self) -> Mapping[str, str]:
        return {**node.environment(), "AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}

    def answers(self) -> bool:
        try:
            self.endpoint.call("GET", "/", {"comp": "list"})  # only our own server knows this key
        except OSError:
            return False
        return True
