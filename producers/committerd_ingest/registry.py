"""A client of a schema registry: the schemas by whose ids values are written.

It speaks the REST interface of Confluent's registry, which those of Redpanda, Karapace and Apicurio have too. A schema
never changes under its id, so that what was read is kept.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import aiohttp

from committerd_ingest.avro import AvroRows
from committerd_ingest.protobuf import ProtobufSchema
from committerd_ingest.wire_format import Schema, Schemas, UnusableSchema

RegistryFormat: TypeAlias = Literal["avro", "protobuf"]

_KEPT_MAX = 1000
"""Schemas in memory."""
_KEPT_BYTES = 8 * 1024 * 1024
"""Bytes of their texts. A parsed schema takes about ten times as much."""
_ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""Of a schema with those that it refers to."""
_ANSWER_MIB = _ANSWER_BYTES_MAX // 1024 // 1024
_REFERENCES_MAX = 100
_REQUESTS_PER_SECOND = 50.0
_REQUESTS_AT_ONCE = 100
"""Requests that need not wait, after some quiet."""
_NOT_FOUND = {40401: "subject", 40402: "version", 40403: "schema"}
"""Error codes by which the registry itself says that it has none; any other 404 is of another server or path."""


class RegistryUnavailable(ConnectionError):
    """The registry gives no schemas now. The text has no secret."""


class Registry:
    """Reads schemas, and keeps those that were used last. Schemas of another format than the pipeline's are unusable.

    Requests have a pace, whatever ids the records name.
    """

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
        self._kept: OrderedDict[int, tuple[Schema | UnusableSchema, int]] = OrderedDict()
        """With the bytes of its text."""
        self._kept_bytes = 0
        self._free_at = 0.0
        """When all requests so far have had their share of time (monotonic seconds)."""

    def lacks(self, ids: Iterable[int]) -> set[int]:
        """Those of these ids that must be asked for."""
        return {one for one in ids if one not in self._kept}

    async def schemas(self, ids: Iterable[int]) -> Schemas:
        """These schemas. Raises `RegistryUnavailable`."""
        wanted = set(ids)
        missing = sorted(self.lacks(wanted))
        found = {one: self._kept[one][0] for one in wanted.difference(missing)}
        for one in found:
            self._kept.move_to_end(one)
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
            schema, _ = await self._schema(session, answer)
            return schema

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self._timeout),
        )

    async def _read(self, session: aiohttp.ClientSession, number: int) -> Schema | UnusableSchema:
        made: Schema | UnusableSchema
        size = 0
        try:
            answer = await self._get(session, f"/schemas/ids/{number}")
            if isinstance(answer, str):  # not kept: the schema may be on its way to this registry
                return UnusableSchema(f"the schema registry has no {answer} of id {number}")
            made, size = await self._schema(session, answer)
        except UnusableSchema as error:
            made = UnusableSchema(f"schema {number} of the registry can't be used: {error}")
        self._keep(number, made, size)
        return made

    def _keep(self, number: int, schema: Schema | UnusableSchema, size: int) -> None:
        _, before = self._kept.pop(number, (None, 0))  # another partition has read it meanwhile
        self._kept[number] = schema, size
        self._kept_bytes += size - before
        while len(self._kept) > _KEPT_MAX or (self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1):
            _, (_, size) = self._kept.popitem(last=False)
            self._kept_bytes -= size

    async def _schema(self, session: aiohttp.ClientSession, answer: Mapping[str, Any]) -> tuple[Schema, int]:
        """The schema, and the bytes of its text with those that it refers to."""
        format = str(answer.get("schemaType") or "AVRO").lower()
        if format != self._format:
            raise UnusableSchema(f"it is of {format.upper()}, and ingest.format is {self._format}")
        references: OrderedDict[str, str] = OrderedDict()
        await self._collect(session, answer, references, ())
        size = _bytes(_text(answer), *references.values())
        if self._format == "avro":
            return await asyncio.to_thread(AvroRows, _text(answer), list(references.values())), size
        return await asyncio.to_thread(ProtobufSchema, _text(answer), list(references.items())), size

    async def _collect(
        self,
        session: aiohttp.ClientSession,
        answer: Mapping[str, Any],
        found: OrderedDict[str, str],
        around: tuple[str, ...],
    ) -> None:
        """Read the schemas that this one refers to, each behind those that it refers to itself."""
        for name, subject, version in self._references(answer):
            if name in found:
                continue
            if name in around or len(found) + len(around) >= _REFERENCES_MAX:
                raise UnusableSchema(f"its references come back to {name}, or are more than {_REFERENCES_MAX}")
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            below = await self._get(session, path, deleted="true")
            if isinstance(below, str):
                raise UnusableSchema(f"it refers to version {version} of subject {subject!r}, and there is no {below}")
            await self._collect(session, below, found, (*around, name))
            found[name] = _text(below)
            if _bytes(*found.values()) > _ANSWER_BYTES_MAX:
                raise UnusableSchema(f"with those that it refers to, it has more than {_ANSWER_MIB} MiB")

    def _references(self, answer: Mapping[str, Any]) -> list[tuple[str, str, int]]:
        """Name, subject and version of each."""
        try:
            return [(str(one["name"]), str(one["subject"]), int(one["version"])) for one in answer["references"] or ()]
        except KeyError as error:
            if error.args == ("references",):
                return []
            said = f"without {error}"
        except (TypeError, ValueError) as error:
            said = str(error)
        raise RegistryUnavailable(
            f"the schema registry at {self._url} gives a schema whose references are none ({said}): "
            f"{json.dumps(answer['references'])[:200]}"
        )

    async def _turn(self) -> None:
        """Wait until the next request may be sent."""
        now, share = time.monotonic(), 1 / _REQUESTS_PER_SECOND
        self._free_at = max(self._free_at, now) + share
        await asyncio.sleep(max(self._free_at - now - _REQUESTS_AT_ONCE * share, 0))

    async def _get(self, session: aiohttp.ClientSession, path: str, **query: str) -> dict[str, Any] | str:
        """The answer; or what is not there."""
        if self._format == "protobuf":
            query["format"] = "serialized"
        await self._turn()
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
            raise UnusableSchema(f"it has more than {_ANSWER_MIB} MiB")
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


def _bytes(*texts: str) -> int:
    return sum(map(len, texts))


def _text(answer: Mapping[str, Any]) -> str:
    return str(answer["schema"])
