"""A schema registry: an HTTP server with the part of Confluent's REST interface that readers use."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from google.protobuf.descriptor_pb2 import FileDescriptorSet


@dataclass(frozen=True)
class Registered:
    text: str
    kind: str
    references: Sequence[dict[str, Any]]
    serialized: str = ""


class RegistryServer:
    """A registry that can be away, at an address that nobody else gets meanwhile."""

    def __init__(self, *, login: str = "", tls: ssl.SSLContext | None = None) -> None:
        """`login`: user:password that each request must have."""
        self.schemas: dict[int, Registered] = {}
        self.versions: dict[tuple[str, int], int] = {}
        self.requests: list[str] = []
        self.status = 200
        """What it answers to everything, if not 200; 0: it closes each connection, without an answer."""
        self._login = login
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.requests.append(self.path)
                if registry.status == 0:
                    self.close_connection = True
                    return
                status, answer = registry._answer(self.path, self.headers.get("Authorization", ""))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """It writes nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_: object) -> None:
                """A client that has gone is none."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_address[1]}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def register(
        self, text: str, *, kind: str = "AVRO", subject: str = "", references: Sequence[tuple[str, str]] = ()
    ) -> int:
        """Register a schema; returns its id. `references`: name and subject of each."""
        number = len(self.schemas) + 1
        known = [{"name": name, "subject": below, "version": 1} for name, below in references]
        serialized = ""
        if kind == "PROTOBUF":
            files = {name: self.schemas[self.versions[below, 1]].text for name, below in references}
            serialized = base64.b64encode(compiled(text, files)).decode()
        self.schemas[number] = Registered(text, kind, known, serialized)
        below = subject or f"subject-{number}"
        self.versions[below, 1 + sum(name == below for name, _ in self.versions)] = number
        return number

    def _answer(self, path: str, login: str) -> tuple[int, dict[str, Any]]:
        if self.status != 200:
            return self.status, {"error_code": 50001, "message": "no"}
        if self._login and login != f"Basic {base64.b64encode(self._login.encode()).decode()}":
            return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = urlsplit(path)
        match parts.path.strip("/").split("/"):
            case ["schemas", "ids", number]:
                found = self.schemas.get(int(number))
                missing = {"error_code": 40403, "message": "Schema not found"}
            case ["subjects", subject, "versions", version]:
                known = {number: one for (name, number), one in self.versions.items() if name == unquote(subject)}
                found = self.schemas.get(known.get(max(known, default=0) if version == "latest" else int(version), 0))
                missing = {"error_code": 40401, "message": "Subject not found"}
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        if found is None:
            return 404, missing
        answer: dict[str, Any] = {"schema": found.text}
        if parse_qs(parts.query).get("format") == ["serialized"] and found.serialized:
            answer["schema"] = found.serialized
        if found.kind != "AVRO":
            answer["schemaType"] = found.kind
        if found.references:
            answer["references"] = list(found.references)
        return 200, answer


def compiled(text: str, files: dict[str, str]) -> bytes:
    """The FileDescriptorProto of a .proto file that imports `files`, as protoc writes it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, body in {**files, "default.proto": text}.items():
            place = Path(folder) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(body)
        out = Path(folder) / "out.bin"
        subprocess.run(
            [
                Path(sys.prefix) / "bin" / "protoc",
                f"--proto_path={folder}",
                f"--descriptor_set_out={out}",
                "default.proto",
            ],
            check=True,
        )
        return FileDescriptorSet.FromString(out.read_bytes()).file[0].SerializeToString()
