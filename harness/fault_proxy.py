"""An HTTP proxy between a client and a store (S3, DynamoDB) that injects faults.

    with FaultProxy(s3.url) as proxy:
        proxy.fault(DROP_ANSWER, method="PUT", path=r"\\.manifest$")       # the next one
        held = proxy.hold(target="PutItem")                               # before it is applied
        ...                                                               # work by way of proxy.url
        held.wait()
        held.release()

It runs in a thread of its own. It forwards requests unchanged, the Host header too: clients sign the proxy's address,
and the server verifies the signature.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "expect", "proxy-connection", "upgrade"})
_START_SECONDS_MAX = 60.0
_SHUTDOWN_SECONDS = 0.1  # for aiohttp 0 means no limit
_S3_CODES = {
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    503: "SlowDown",
}
_DYNAMODB_CODES = {
    400: "ProvisionedThroughputExceededException",
    500: "InternalServerError",
    503: "ServiceUnavailable",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a request."""

    name: str
    applied: bool
    """Whether the server gets the request."""
    status: int | None = None
    """Status of the response, instead of the server's; None closes the connection."""
    retry_after: int | None = None
    """Header Retry-After of the response, in seconds."""
    half_body: bool = False
    """Whether to send the server's status and headers and the first half of its body, and then close the connection."""


DROP_ANSWER = Fault("drop_answer", applied=True)
DROP_REQUEST = Fault("drop_request", applied=False)
HALF_BODY = Fault("half_body", applied=True, half_body=True)


def answer(status: int, *, applied: bool = False, retry_after: int | None = None) -> Fault:
    """A fault with an error status. `applied`: whether the server gets the request."""
    return Fault(f"{status}{'_applied' if applied else ''}", applied, status=status, retry_after=retry_after)


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that the proxy has received."""

    method: str
    path: str
    """Path and query."""
    target: str
    """DynamoDB's operation, else empty."""
    forwarded: int | None
    """The server's status; None if the server has not got the request (yet)."""
    fault: str | None


@dataclass(slots=True)
class Rule:
    """Chooses the requests that get a fault; a field that is None matches all."""

    fault: Fault | None
    method: str | None = None
    path: str | None = None
    """A regular expression to find in path and query, percent-decoded."""
    target: str | None = None
    """DynamoDB's operation: `PutItem`."""
    body: str | None = None
    """A regular expression to find in the body."""
    first: int = 1
    """Number of the first matching request that gets the fault, from 1 on; those before pass."""
    times: int | None = 1
    """How many requests get the fault; None = no limit."""
    chance: float = 1.0
    """Probability of the fault for each of them, 0 to 1."""
    hold: Hold | None = None
    matched: int = 0
    hits: int = 0

    def matches(self, request: web.BaseRequest, body: bytes) -> bool:
        """Whether the request matches; does not count it."""
        return (
            (self.method is None or self.method == request.method)
            and (self.path is None or re.search(self.path, unquote(request.raw_path)) is not None)
            and (self.target is None or self.target == _target(request))
            and (self.body is None or re.search(self.body.encode(), body) is not None)
        )

    def takes(self, rng: random.Random) -> bool:
        """Count a matching request; returns whether it gets the fault."""
        self.matched += 1
        if self.matched < self.first or (self.times is not None and self.hits >= self.times):
            return False
        if self.chance < 1 and rng.random() >= self.chance:
            return False
        self.hits += 1
        return True


class Hold:
    """A request that waits in the proxy."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, applied: bool) -> None:
        self.applied = applied
        """Whether the response waits, and not the request on its way to the server."""
        self._loop = loop
        self._reached = threading.Event()
        self._passed = threading.Event()
        self._released: asyncio.Future[bool] = loop.create_future()

    def wait(self, *, timeout: float = 120) -> None:
        """Wait until a request is held."""
        assert self._reached.wait(timeout), "no request came to be held"

    def release(self, *, drop: bool = False) -> None:
        """Forward the held request, or close its connection (`drop`). May be called before the request arrives."""
        self._loop.call_soon_threadsafe(self._let_go, drop)

    def wait_passed(self, *, timeout: float = 120) -> None:
        """Wait, after the release, until the server has responded or the request was dropped."""
        assert self._passed.wait(timeout), "what was held did not go on"

    def _let_go(self, drop: bool) -> None:
        if not self._released.done():
            self._released.set_result(not drop)

    def passed(self) -> None:
        """Note that the request is finished."""
        self._passed.set()

    async def pause(self) -> bool:
        """Wait for the release; returns False to drop the request."""
        self._reached.set()
        return await asyncio.shield(self._released)


class FaultProxy:
    """A proxy to one server. Methods may be called from any thread."""

    def __init__(self, upstream: str, *, seed: int = 0) -> None:
        """`upstream`: the server's URL. `seed`: of the random numbers for every `chance`."""
        self._upstream = upstream.rstrip("/")
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._seen: list[Seen] = []
        self._holds: list[Hold] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._started = threading.Event()
        self._end: asyncio.Future[None] = self._loop.create_future()
        self.url = ""
        """`http://127.0.0.1:PORT`; empty before the start."""

    def fault(
        self,
        fault: Fault,
        *,
        method: str | None = None,
        path: str | None = None,
        target: str | None = None,
        body: str | None = None,
        first: int = 1,
        times: int | None = 1,
        chance: float = 1.0,
    ) -> Rule:
        """Inject the fault into matching requests. If several rules match, the oldest one with faults left applies."""
        return self._add(Rule(fault, method, path, target, body, first, times, chance))

    def hold(
        self,
        *,
        applied: bool = False,
        method: str | None = None,
        path: str | None = None,
        target: str | None = None,
        body: str | None = None,
        first: int = 1,
    ) -> Hold:
        """Hold the first matching request before the server gets it, or (`applied`) the server's response."""
        made = Hold(self._loop, applied=applied)
        self._holds.append(made)
        self._add(Rule(None, method, path, target, body, first, hold=made))
        return made

    def clear(self) -> None:
        """Remove all rules; held requests stay held."""
        with self._lock:
            self._rules.clear()

    @property
    def seen(self) -> Sequence[Seen]:
        """All requests so far whose responses are known, in order."""
        with self._lock:
            return list(self._seen)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait(_START_SECONDS_MAX)
        assert self.url, "the proxy did not start"
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, close all connections, and drop held requests."""
        for hold in self._holds:
            hold.release(drop=True)
        self._loop.call_soon_threadsafe(self._end.set_result, None)
        self._thread.join()

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
                server = web.Server(lambda request: self._handle(request, session), access_log=None)
                runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_SECONDS)
                await runner.setup()
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
                self._started.set()
                await self._end
                await runner.cleanup()
        finally:
            self._started.set()

    async def _handle(self, request: web.BaseRequest, session: aiohttp.ClientSession) -> web.StreamResponse:
        body = await request.content.read()  # `request.read` has a limit of 1 MiB
        rule = self._decide(request, body)
        try:
            return await self._treat(request, body, session, rule=rule)
        finally:
            if rule and rule.hold:
                rule.hold.passed()

    async def _treat(
        self, request: web.BaseRequest, body: bytes, session: aiohttp.ClientSession, *, rule: Rule | None
    ) -> web.StreamResponse:
        fault, hold = (rule.fault, rule.hold) if rule else (None, None)
        if hold and not hold.applied and not await hold.pause():
            return self._closed(request, None, "hold_dropped")
        if fault and not fault.applied:
            return self._faulty(request, fault, None)
        forwarded = await self._forward(request, body, session)
        if hold and hold.applied and not await hold.pause():
            return self._closed(request, forwarded.status, "hold_dropped")
        if fault and fault.half_body:
            self._note(request, forwarded.status, fault.name)
            return await _half(request, forwarded)
        if fault:
            return self._faulty(request, fault, forwarded.status)
        self._note(request, forwarded.status, None)
        return forwarded

    def _decide(self, request: web.BaseRequest, body: bytes) -> Rule | None:
        with self._lock:
            for rule in self._rules:
                if rule.matches(request, body) and rule.takes(self._rng):
                    return rule
        return None

    def _note(self, request: web.BaseRequest, forwarded: int | None, fault: str | None) -> None:
        seen = Seen(request.method, request.raw_path, _target(request), forwarded, fault)
        with self._lock:
            self._seen.append(seen)

    async def _forward(self, request: web.BaseRequest, body: bytes, session: aiohttp.ClientSession) -> web.Response:
        headers = CIMultiDict((k, v) for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP)
        return await self._send(session, request.method, self._upstream + request.raw_path, headers=headers, body=body)

    async def _send(
        self, session: aiohttp.ClientSession, method: str, url: str, *, headers: Mapping[str, str], body: bytes
    ) -> web.Response:
        """Send a request to the server."""
        async with session.request(
            method,
            URL(url, encoded=True),
            data=io.BytesIO(body) if body else None,
            headers=headers,
            allow_redirects=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        ) as answered:
            read = await answered.read()
            kept = CIMultiDict((k, v) for k, v in answered.headers.items() if k.lower() not in _HOP_BY_HOP)
            return web.Response(status=answered.status, reason=answered.reason, headers=kept, body=read)

    def _faulty(self, request: web.BaseRequest, fault: Fault, forwarded: int | None) -> web.StreamResponse:
        if fault.status is None:
            return self._closed(request, forwarded, fault.name)
        self._note(request, forwarded, fault.name)
        headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
        if _target(request):
            code = _DYNAMODB_CODES[fault.status]
            said = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "the proxy made it up"})
            headers["Content-Type"] = "application/x-amz-json-1.0"
        else:
            said = f"<Error><Code>{_S3_CODES[fault.status]}</Code><Message>the proxy made it up</Message></Error>"
            headers["Content-Type"] = "application/xml"
        return web.Response(status=fault.status, headers=headers, text=None, body=said.encode())

    def _closed(self, request: web.BaseRequest, forwarded: int | None, fault: str) -> web.StreamResponse:
        """Close the connection without a response."""
        self._note(request, forwarded, fault)
        if request.transport is not None:
            request.transport.abort()
        return web.Response()  # nobody receives it


async def _half(request: web.BaseRequest, whole: web.Response) -> web.StreamResponse:
    body = whole.body
    assert isinstance(body, bytes)
    begun = web.StreamResponse(status=whole.status, reason=whole.reason, headers=whole.headers)
    begun.content_length = len(body)
    await begun.prepare(request)
    await begun.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.close()  # sends the written bytes first
    return begun


def _target(request: web.BaseRequest) -> str:
    return request.headers.get("X-Amz-Target", "").rpartition(".")[2]
