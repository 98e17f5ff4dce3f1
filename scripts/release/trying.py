"""Try what was built: install it from an index into an empty environment, and commit a transaction there."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from packaging.utils import canonicalize_name

from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from scripts.programs import run, uv
from scripts.release.building import CONSTRAINTS
from scripts.release.serving import serving

_COMMIT = """
import json, sys
import committerd_client, lance
from committerd_client import SyncCommitClient

servers, name, uri = sys.argv[1:]
with SyncCommitClient(servers, dataset=name, dataset_uri=uri, timeout=120) as client:
    written = client.append([{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}], create=True)
print(json.dumps([committerd_client.__file__, lance.dataset(uri).to_table().to_pylist()]))
"""


@contextmanager
def index(files: Sequence[Path]) -> Iterator[str]:
    """A package index with these files, on this machine alone; its address."""
    with tempfile.TemporaryDirectory(prefix="committerd-index-") as folder:
        for file in files:
            page = Path(folder, "simple", canonicalize_name(file.name.partition("-")[0]))
            page.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, page)
            with (page / "index.html").open("a", encoding="utf-8") as html:
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                html.write(f'<a href="{quote(file.name)}#sha256={digest}">{file.name}</a><br>\n')
        with serving(functools.partial(_Quiet, directory=folder)) as url:
            yield f"{url}/simple"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a client asks for each package whether it is here."""


def installed(files: Sequence[Path], folder: Path) -> Path:
    """An environment in `folder` with both distributions, out of these files alone; its interpreter.

    An index of our own is asked first, and a name that it has is taken from nowhere else.
    """
    uv("venv", "--quiet", "--no-project", folder)
    python = folder / "bin" / "python"
    with index([file for file in files if file.name.endswith((".whl", ".tar.gz"))]) as address:
        uv(
            "pip", "install", "--quiet", "--python", python, "--index", address, "--constraint", CONSTRAINTS,
            "--refresh-package", "committerd", "--refresh-package", "committerd-client", "committerd[lance]",
        )  # fmt: skip
    return python


def committed(python: Path, kafka: KafkaBroker | RunningKafka, name: str, folder: Path) -> list[dict[str, object]]:
    """The rows of a table that this environment's client wrote, through this environment's committer."""
    uri = str(folder / "events.lance")
    with Daemon(
        name=name, uri=uri, kafka=kafka.bootstrap_servers, command=[str(python.with_name("committerd")), "run"]
    ) as daemon:
        said = run(python, "-I", "-c", _COMMIT, kafka.bootstrap_servers, name, uri, folder=folder)
        daemon.stop()
    where, rows = json.loads(said.splitlines()[-1])
    if not Path(where).is_relative_to(python.parent.parent):
        raise RuntimeError(f"committerd_client is that of {where}")
    return list(rows)
