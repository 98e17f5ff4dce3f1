"""Builds versions with pylance, in a process of its own.

A process and not a thread: a record may make pylance panic, abort, or take memory and time without end, and none of it
may harm the committer. The process gets the settings as this one does, opens the table itself, and leaves what it built
in the table's store, under the names of detached versions. This module reads and deletes them. Before the first version
is built, it deletes what a killed process has left.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import anyio
from anyio.abc import ByteSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from committerd.errors import CorruptTable, ObjectUnreadable, StoreUnavailable, UnsupportedRequest
from committerd.lance.format.manifest_file import decode
from committerd.stores.port import ObjectStore
from committerd.table.by_pylance import BUILD
from committerd.table.manifests import detached_manifests
from committerd.table.needs import BuiltByPylance, PylanceBuilt
from committerd_common.paths import VERSIONS, transaction_key

_log = logging.getLogger(__name__)

_ATTEMPTS = 3
"""Attempts after errors that may be of the store or of the machine."""
_SECONDS_MAX = 120.0
"""Longest time for one version."""
_WAIT_SECONDS = 1.0
"""Time between two attempts."""
_END_SECONDS = 0.2
"""Time in which a process that ends by itself has ended."""
_ANSWER_BYTES_MAX = 64 * 1024


class PylanceProcess:
    """`table.fetching.BuildWithPylance` in a process, which begins with the first version: one version at a time.

    A context manager: at its end, the process ends too. It also ends when this process does, and after an error that
    may be its own.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """`command`: runs `committerd.commands.build_with_pylance`."""
        self._command = command
        self._limiter = anyio.CapacityLimiter(1)
        self._running: _Running | None = None
        self._has_swept = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._end()

    async def __call__(self, store: ObjectStore, need: BuiltByPylance) -> PylanceBuilt:
        """Build it. Raises `UnsupportedRequest` (`pylance_refused`), or `StoreUnavailable`."""
        async with self._limiter:
            if not self._has_swept:
                await self._sweep(store)
                self._has_swept = True
            said: dict[str, Any] = {}
            for attempt in range(_ATTEMPTS):
                if attempt:
                    await anyio.sleep(_WAIT_SECONDS)
                said = await self._ask(need)
                if "error" not in said:
                    return await _read(store, said)
                if said["is_refused"]:
                    break
                await store.list(VERSIONS, limit=1)  # an outage is nobody's fault
            raise UnsupportedRequest(f"pylance can't commit it: {said['error']}", code="pylance_refused")

    async def _ask(self, need: BuiltByPylance) -> dict[str, Any]:
        """What the process answers; an error in place of its answer if it ends, or takes too long."""
        transaction = base64.b64encode(need.transaction.SerializeToString()).decode()
        line = json.dumps({"version": need.version, "transaction": transaction}).encode() + b"\n"
        answer: dict[str, Any] | None = None
        try:
            with anyio.move_on_after(_SECONDS_MAX):
                if self._running is None:
                    self._running = await _start(self._command)
                answer = await self._running.answer(line)
        except (anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.BrokenResourceError, ValueError):
            pass
        finally:
            exit_code = None if answer is not None else await self._end()  # a late answer must not be that to the next
        if answer is not None:
            return answer
        why = (
            "it was ended: it took too long, or its answer makes no sense"
            if exit_code is None
            else f"exit code {exit_code}"
        )
        _log.warning("pylance.ended", extra={"version": need.version, "error": why})
        return {"error": f"its process has ended: {why}", "is_refused": False}

    async def _end(self) -> int | None:
        """End the process; returns its exit code if it had ended by itself."""
        running, self._running = self._running, None
        if running is None:
            return None
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(_END_SECONDS):
                await running.process.wait()
            exit_code = running.process.returncode
            if exit_code is None:
                running.process.kill()
            await running.process.aclose()
        return exit_code

    async def _sweep(self, store: ObjectStore) -> None:
        """Delete what committers have built and not deleted. One that still runs builds it again."""
        for key in detached_manifests(await store.list(VERSIONS, start_after=f"{VERSIONS}d")):
            try:
                body = await store.get(key)
                file = decode(body) if body is not None else None
            except (CorruptTable, ObjectUnreadable):
                continue  # another program's
            if file is not None and file.transaction is not None and BUILD in file.transaction.transaction_properties:
                await _delete(store, key, file.outline.transaction_file)


@dataclass(frozen=True, slots=True)
class _Running:
    process: Process
    asks: ByteSendStream
    answers: BufferedByteReceiveStream

    async def answer(self, line: bytes) -> dict[str, Any]:
        await self.asks.send(line)
        found: dict[str, Any] = json.loads(await self.answers.receive_until(b"\n", _ANSWER_BYTES_MAX))
        return found


async def _start(command: Sequence[str]) -> _Running:
    # A session of its own: Ctrl-C is for the committer, which ends the version in flight.
    process = await anyio.open_process(command, stderr=None, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    _log.info("pylance.started", extra={"process_id": process.pid})
    return _Running(process, process.stdin, BufferedByteReceiveStream(process.stdout))


async def _read(store: ObjectStore, said: dict[str, Any]) -> PylanceBuilt:
    body = await _taken(store, said["built"])
    after = await _taken(store, said["next"]) if said["next"] is not None else None
    return PylanceBuilt(body, after, said["refusal"])


async def _taken(store: ObjectStore, version: int) -> bytes:
    """Read the manifest of a detached version, and delete it."""
    key = f"{VERSIONS}d{version}.manifest"
    body = await store.get(key)
    if body is None:
        raise StoreUnavailable(f"{key}, which pylance has just written, is not there")
    try:
        name = decode(body).outline.transaction_file
    except CorruptTable:
        name = ""
    await _delete(store, key, name)
    return body


async def _delete(store: ObjectStore, key: str, transaction_file: str) -> None:
    """Delete a detached version. If that fails, it only takes room."""
    try:
        if transaction_file:
            await store.delete(transaction_key(transaction_file))
        await store.delete(key)
    except StoreUnavailable as error:
        _log.warning("pylance.not_deleted", extra={"key": key, "error": str(error)})
