"""Kubernetes without a cluster: helm, kubeconform, and a real kube-apiserver with its etcd.

The API server validates, defaults and admits all that a cluster would; nothing is scheduled, so no Pod ever runs.
The first build takes about four minutes on two cores; later starts take two seconds and no network.

    python -m tests.deploy.parts_kubernetes --fetch    only build
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import secrets
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import PartMissingError, cache_folder, made_in_cache
from harness.golang import INSTALL
from harness.helm import HELM
from harness.server import Server

BUILDS = pytest.mark.timeout(3600)
"""For tests with an API server: the first one may build it, which takes over ten minutes on a slow machine."""
KUBERNETES_VERSION = "1.36.3"
_TOOL = 'package tools\n\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver"\n'
_STAGED_MODULE = re.compile(r"^\s*(k8s\.io/\S+) => \./staging/", re.MULTILINE)


def api_server() -> Path:
    """The kube-apiserver: from the cache, else built. Raises `PartMissingError` without Go."""
    target = cache_folder() / f"kube-apiserver-{KUBERNETES_VERSION}-{sys.platform}-{platform.machine()}"
    binary = target / "kube-apiserver"
    if binary.is_file():
        return binary
    go = shutil.which("go")
    if go is None:
        raise PartMissingError(f"kube-apiserver has to be built and there is no `go`: {INSTALL}")
    with made_in_cache(target, needed=binary) as made:
        _build(go, made)
    return binary


def _build(go: str, made: Path) -> None:
    """Kubernetes' own modules are published beside it, v0.36.3 for v1.36.3; its go.mod names them."""

    def run(*arguments: str) -> str:
        environment = {**os.environ, "GOFLAGS": "", "GOOS": "", "GOARCH": "", "GOWORK": "off"}
        done = subprocess.run(
            [go, *arguments], env=environment, cwd=source, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"Go can't build kube-apiserver (go {' '.join(arguments)}):\n{done.stdout}{done.stderr}")
        return done.stdout

    source = made.parent / "source"
    source.mkdir()
    made.mkdir()
    (source / "tools.go").write_text(_TOOL)
    module = f"k8s.io/kubernetes@v{KUBERNETES_VERSION}"
    (source / "go.mod").write_text("module tools\n")
    published = json.loads(run("mod", "download", "-json", module))["GoMod"]
    staged = _STAGED_MODULE.findall(Path(published).read_text())
    part = KUBERNETES_VERSION.replace("1.", "0.", 1)
    lines = [
        "module tools",
        f"require k8s.io/kubernetes v{KUBERNETES_VERSION}",
        *(f"replace {name} => {name} v{part}" for name in staged),
    ]
    (source / "go.mod").write_text("\n".join(lines) + "\n")
    run("mod", "tidy")
    # Otherwise it takes itself for v0.0.0-master, for which no chart is made.
    says = f"-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES_VERSION}"
    run("build", "-ldflags", says, "-o", str(made / "kube-apiserver"), "k8s.io/kubernetes/cmd/kube-apiserver")


class Etcd(Server):
    """The API server's database, from the system's packages."""

    name = "etcd"

    def __init__(self) -> None:
        super().__init__()
        self.data = self.folder / "data"

    def command(self, port: int) -> Sequence[str | Path]:
        etcd = shutil.which("etcd")
        if etcd is None:
            raise PartMissingError(
                "there is no `etcd`: sudo apt-get install etcd-server (Fedora: sudo dnf install etcd; "
                "macOS: brew install etcd)"
            )
        url = f"http://127.0.0.1:{port}"
        # Port 0 for its peers: there are none. Speed before safety: the data is gone with the test.
        return [
            etcd, "--data-dir", self.data, "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", "http://127.0.0.1:0", "--unsafe-no-fsync",
        ]  # fmt: skip

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as response:
                return bool(json.load(response)["health"] == "true")
        except (OSError, ValueError):
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the API server said."""

    status: int
    body: dict[str, Any]
    warnings: list[str]

    @property
    def message(self) -> str:
        """Of an error; empty otherwise."""
        return str(self.body.get("message", "")) if self.status >= 400 else ""


class KubeApiServer(Server):
    """One API server with RBAC, Pod Security admission and an administrator who logs in with a token."""

    name = "kube-apiserver"

    def __init__(self, etcd: Etcd) -> None:
        super().__init__()
        self._etcd = etcd
        self._token = secrets.token_hex(16)
        self._tls = ssl.create_default_context()
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE  # it makes its own certificate, on this machine
        self._key = self.folder / "accounts.pem"
        self._tokens = self.folder / "tokens.csv"

    @property
    def url(self) -> str:
        """`https://127.0.0.1:PORT`."""
        return super().url.replace("http:", "https:", 1)

    def command(self, port: int) -> Sequence[str | Path]:
        self._tokens.write_text(f'{self._token},admin,1,"system:masters"\n')
        if not self._key.exists():
            openssl = shutil.which("openssl")
            if openssl is None:
                raise PartMissingError("there is no `openssl`: sudo apt-get install openssl")
            subprocess.run([openssl, "genrsa", "-out", self._key, "2048"], check=True, capture_output=True)
        return [
            api_server(), "--etcd-servers", self._etcd.url, "--secure-port", str(port), "--bind-address", "127.0.0.1",
            "--cert-dir", self.folder / "certificates", "--service-account-key-file", self._key,
            "--service-account-signing-key-file", self._key, "--service-account-issuer", "https://kubernetes.default",
            "--token-auth-file", self._tokens, "--authorization-mode", "RBAC",
            "--service-cluster-ip-range", "10.0.0.0/24",
        ]  # fmt: skip

    def answers(self) -> bool:
        try:
            return self.ask("GET", "/readyz").status == 200
        except OSError:
            return False

    def ask(self, method: str, path: str, body: object = None, *, content: str = "application/json") -> Answer:
        """One request as administrator; an error of the server is an answer, not an exception."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": content},
        )
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=30) as response:
                status, text, headers = response.status, response.read(), response.headers
        except urllib.error.HTTPError as error:
            with error:
                status, text, headers = error.code, error.read(), error.headers
        parsed = json.loads(text) if text.startswith(b"{") else {"text": text.decode()}
        return Answer(status=status, body=parsed, warnings=headers.get_all("Warning", []))

    def kubeconfig(self) -> Path:
        """A file for helm and kubectl."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": self._token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path = self.folder / "kubeconfig.json"
        path.write_text(json.dumps(config))
        return path


@contextlib.contextmanager
def kubernetes() -> Iterator[KubeApiServer]:
    """An empty cluster that runs nothing. Raises `PartMissingError`."""
    with Etcd() as etcd, KubeApiServer(etcd) as server:
        yield server


def _main() -> None:
    parser = argparse.ArgumentParser(description="helm and a kube-apiserver for the tests of the chart")
    parser.add_argument("--fetch", action="store_true", help="only build what is missing", required=True)
    parser.parse_args()
    try:
        print(HELM.built())
        print(api_server())
    except PartMissingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
