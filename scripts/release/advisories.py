"""A copy of OSV's advisories, for `make advisories` where the network does not lead to PyPI's list of them.

OSV (https://osv.dev) publishes all advisories about packages of PyPI in an archive, with a JSON file for each:
https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip. pip-audit asks a server, so a server reads the archive.
"""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from scripts.release.serving import serving

Advisory = Mapping[str, Any]


@contextmanager
def served(archive: Path) -> Iterator[str]:
    """The URL of a server that finds advisories of the archive, as OSV's does.

    Raises `OSError`, `BadZipFile` and `ValueError`.
    """
    known = _read(archive)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = matching(known, asked["package"]["name"], asked["version"])
            body = json.dumps({"vulns": found} if found else {}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing of requests."""

    with serving(Handler) as url:
        yield f"{url}/v1/query"


def _read(archive: Path) -> Mapping[str, Sequence[Advisory]]:
    """The advisories by canonical name of the package."""
    known = defaultdict[str, list[Advisory]](list)
    with zipfile.ZipFile(archive) as copy:
        for name in copy.namelist():
            if name.endswith(".json"):
                advisory = json.loads(copy.read(name))
                for package in {canonicalize_name(one["package"]["name"]) for one in _of_pypi(advisory)}:
                    known[package].append(advisory)
    if not known:
        raise ValueError(f"{archive} has no advisory about a package of PyPI: it must be OSV's PyPI/all.zip")
    return known


def matching(known: Mapping[str, Sequence[Advisory]], package: str, version: str) -> Sequence[Advisory]:
    """The advisories that concern this version, as https://ossf.github.io/osv-schema/#evaluation says."""
    name = canonicalize_name(package)
    return [
        advisory
        for advisory in known.get(name, ())
        if any(
            canonicalize_name(one["package"]["name"]) == name
            and (
                version in one.get("versions", ())
                or any(_is_in(Version(version), part) for part in one.get("ranges", ()))
            )
            for one in _of_pypi(advisory)
        )
    ]


def _of_pypi(advisory: Advisory) -> Sequence[Mapping[str, Any]]:
    return [one for one in advisory.get("affected", ()) if one.get("package", {}).get("ecosystem") == "PyPI"]


def _is_in(version: Version, part: Mapping[str, Any]) -> bool:
    """Whether the range has the version. A range of commits has no version; a limit that is no version is ignored."""
    if part["type"] != "ECOSYSTEM":
        return False
    events = list[tuple[Version, str]]()
    for event in part["events"]:
        for kind, text in event.items():
            try:
                events.append((Version(text), kind))
            except InvalidVersion:
                continue
    inside = False
    for limit, kind in sorted(events):
        if kind == "introduced" and version >= limit:
            inside = True
        elif (kind == "fixed" and version >= limit) or (kind == "last_affected" and version > limit):
            inside = False
    return inside
