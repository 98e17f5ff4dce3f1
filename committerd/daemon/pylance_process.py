"""Builds versions with pylance, in a process of its own.

A process and not a thread: a record may make pylance panic, abort, or take memory and time without end, and none of it
may harm the committer. The process gets the settings as this one does, opens the table itself, and leaves what it built
in the table's store, under the names of detached versions. They are read and deleted here. What a process that was
killed has left is deleted before the first version is built.
"""

from __future__ import annotations

import base64
import json
import logging
import subprocess
from collections.abc import Sequence
from typing import Any

import anyio

from committerd.errors import CorruptTable, StoreUnavailable, UnsupportedRequest
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
_TEXT_MAX = 300


class PylanceProcess:
    """`table.fetching.BuildWithPylance` in a process: one version at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        """`command`: runs `committerd.commands.build_with_pylance`."""
        self._command = command
        self._limiter = anyio.CapacityLimiter(1)
        self._has_swept = False

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
        asked = {
            "version": need.version,
            "transaction": base64.b64encode(need.transaction.SerializeToString()).decode(),
        }
        done: subprocess.CompletedProcess[bytes] | None = None
        with anyio.move_on_after(_SECONDS_MAX):  # ends the process too
            done = await anyio.run_process(self._command, input=json.dumps(asked).encode(), check=False)
        if done is None:
            return {"error": f"it has not ended after {_SECONDS_MAX:g} s", "is_refused": False}
        lines = done.stdout.decode(errors="replace").splitlines()
        if done.returncode == 0 and lines:
            found: dict[str, Any] = json.loads(lines[-1])
            return found
        text = done.stderr.decode(errors="replace")[-_TEXT_MAX:]
        _log.warning("pylance.ended", extra={"exit_code": done.returncode, "error": text})
        return {"error": f"its process ended with exit code {done.returncode}", "is_refused": False}

    async def _sweep(self, store: ObjectStore) -> None:
        """Delete what committers have built and not deleted. One that still runs builds it again."""
        for key in detached_manifests(await store.list(VERSIONS, start_after=f"{VERSIONS}d")):
            body = await store.get(key)
            try:
                file = decode(body) if body is not None else None
            except CorruptTable:
                continue
            if file is not None and file.transaction is not None and BUILD in file.transaction.transaction_properties:
                await _delete(store, key, file.outline.transaction_file)


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
