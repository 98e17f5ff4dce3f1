"""A client of a schema registry: the schemas by whose ids values are written.

It speaks the REST interface of Confluent's registry, which those of Redpanda, Karapace and Apicurio have too. A schema
never changes under its id, so that what was read is kept.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import aiohttp

from committerd_ingest.avro import AvroRows
from committerd_ingest.decoding import Schemas
from committerd_ingest.protobuf import ProtobufSchema
from committerd_ingest.wire_format import Schema, UnusableSchema

RegistryFormat: TypeAlias = Literal["avro", "protobuf"]

_KEPT_MAX = 1000
"""Schemas in memory."""
_ANSWER_BYTES_MAX = 4 * 1024 * 1024
_REFERENCES_MAX = 100
_NOT_FOUND = {40401: "subject", 40402: "version", 40403: "schema"}
"""Error codes by which the registry itself says that it has none; any other 404 is of another server or path."""


class RegistryUnavailable(ConnectionError):
    """The registry gives no schemas now. The text has no secret."""


class Registry:
    """Reads schemas, and keeps the last 1,000. Schemas of another format than the pipeline's are unusable."""

    def __init__(
        self,
        url: str,
        *,
        format: RegistryFormat,
        login: tuple[str, str] | None,
        tls: ssl.SSLContext | None,
        timeout: float,
    ) -> None:
        """`login`: user and password. `tls`: None = the authorities that the system trusts. `timeout`: seconds for each
        request.
        """
        self._url, self._format, self._timeout = url.rstrip("/"), format, timeout
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if login is not None:
            encoded = base64.b64encode(":".join(login).encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        self._tls = True if tls is None else tls
        self._kept: OrderedDict[int, Schema | UnusableSchema] = OrderedDict()

    async def schemas(self, ids: Iterable[int]) -> Schemas:
        """These schemas. Raises `RegistryUnavailable`."""
        wanted = set(ids)
        found = {one: self._kept[one] for one in wanted if one in self._kept}
        for one in found:
            self._kept.move_to_end(one)
        missing = sorted(wanted - found.keys())
        if missing:
            async with self._session() as session:
                for one in missing:
                    found[one] = await self._read(session, one)
        return found

    async def newest(self, subject: str) -> Schema:
        """The newest schema of a subject. Raises `RegistryUnavailable`, and `UnusableSchema` if there is none."""
        async with self._session() as session:
            answer = await self._get(session, f"/subjects/{quote(subject, safe='')}/versions/latest")
            if isinstance(answer, str):
                raise UnusableSchema(f"the schema registry has no subject {subject!r}: set ingest.registry_subject")
            return await self._schema(session, answer)

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self._timeout),
        )

    async def _read(self, session: aiohttp.ClientSession, number: int) -> Schema | UnusableSchema:
        made: Schema | UnusableSchema
        try:
            answer = await self._get(session, f"/schemas/ids/{number}")
            if isinstance(answer, str):  # not kept: the schema may be on its way to this registry
                return UnusableSchema(f"the schema registry has no {answer} of id {number}")
            made = await self._schema(session, answer)
        except UnusableSchema as error:
            made = UnusableSchema(f"schema {number} of the registry can't be used: {error}")
        self._kept[number] = made
        while len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
        return made

    async def _schema(self, session: aiohttp.ClientSession, answer: Mapping[str, Any]) -> Schema:
        format = str(answer.get("schemaType") or "AVRO").lower()
        if format != self._format:
            raise UnusableSchema(f"it is of {format.upper()}, and ingest.format is {self._format}")
        references: OrderedDict[str, str] = OrderedDict()
        await self._collect(session, answer, references, ())
        if self._format == "avro":
            return await asyncio.to_thread(AvroRows, _text(answer), list(references.values()))
        return await asyncio.to_thread(ProtobufSchema, _text(answer), list(references.items()))

    async def _collect(
        self,
        session: aiohttp.ClientSession,
        answer: Mapping[str, Any],
        found: OrderedDict[str, str],
        around: tuple[str, ...],
    ) -> None:
        """Read the schemas that this one refers to, each behind those that it refers to itself."""
        for one in answer.get("references") or ():
            name, subject, version = one["name"], one["subject"], one["version"]
            if name in found:
                continue
            if name in around or len(found) >= _REFERENCES_MAX:
                raise UnusableSchema(f"its references come back to {name}, or are more than {_REFERENCES_MAX}")
            path = f"/subjects/{quote(subject, safe='')}/versions/{int(version)}"
            below = await self._get(session, path, deleted="true")
            if isinstance(below, str):
                raise UnusableSchema(f"it refers to version {version} of subject {subject!r}, and there is no {below}")
            await self._collect(session, below, found, (*around, name))
            found[name] = _text(below)

    async def _get(self, session: aiohttp.ClientSession, path: str, **query: str) -> dict[str, Any] | str:
        """The answer; or what is not there."""
        if self._format == "protobuf":
            query["format"] = "serialized"
        try:
            async with session.get(f"{self._url}{path}", params=query, allow_redirects=False) as response:
                body = await response.content.read(_ANSWER_BYTES_MAX + 1)
                while len(body) <= _ANSWER_BYTES_MAX and (more := await response.content.read(_ANSWER_BYTES_MAX)):
                    body += more
                status = response.status
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            said = str(error) or f"no answer within {self._timeout:g} s"
            raise RegistryUnavailable(f"the schema registry at {self._url} can't be reached: {said}") from error
        if len(body) > _ANSWER_BYTES_MAX:
            raise UnusableSchema(f"it has more than {_ANSWER_BYTES_MAX // 1024 // 1024} MiB")
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and status == 200 and isinstance(answer.get("schema"), str):
            return answer
        code = answer.get("error_code") if isinstance(answer, dict) else None
        if status == 404 and code in _NOT_FOUND:
            return _NOT_FOUND[code]
        hint = ": set ingest.registry_username and registry_password" if status in (401, 403) else ""
        raise RegistryUnavailable(f"the schema registry at {self._url} answers {path} with status {status}{hint}")


def _text(answer: Mapping[str, Any]) -> str:
    return str(answer["schema"])
