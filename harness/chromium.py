"""Headless Chromium, driven over the DevTools protocol.

async with chromium() as page:
    await page.open("http://127.0.0.1:9464/")
    assert await page.value("document.title") == "..."
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from harness import PartMissingError

_START_SECONDS_MAX = 120.0
_POLL_SECONDS = 0.1


class BrowserPage:
    """One page of the browser, with what it has asked for and complained about."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.requested: list[str] = []
        """The URLs that were asked for."""
        self.complaints: list[str] = []
        """Errors and violations of the policy that the console shows."""

    async def listen(self) -> None:
        """Take what the browser says, until its connection ends."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._waiting.pop(said["id"]).set_result(said)
            elif said["method"] == "Network.requestWillBeSent":
                self.requested.append(said["params"]["request"]["url"])
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.complaints.append(said["params"]["entry"]["text"])
            elif said["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        said = await self._waiting[number]
        assert "error" not in said, said
        result: dict[str, Any] = said["result"]
        return result

    async def open(self, url: str) -> None:
        """Open a page."""
        for domain in ("Page", "Network", "Log", "Runtime"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """The value of an expression of JavaScript; waits for it if it is a promise."""
        said = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until the expression is true."""
        for _ in range(int(_START_SECONDS_MAX / _POLL_SECONDS)):
            if await self.value(expression):
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise AssertionError(f"never true: {expression}")

    async def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    async def prefer(self, scheme: str) -> None:
        """Show the page as for a user who prefers `dark` or `light`, and no motion: colours are there at once."""
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def screenshot(self) -> bytes:
        """The visible part of the page as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])


@asynccontextmanager
async def chromium(*, width: int = 1280, height: int = 1000) -> AsyncIterator[BrowserPage]:
    """Start the browser with one empty page. Raises `PartMissingError` if there is none."""
    with _started(width, height) as port:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                (first,) = [one for one in await response.json() if one["type"] == "page"]
            async with session.ws_connect(first["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = BrowserPage(socket)
                listening = asyncio.create_task(page.listen())
                size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
                try:
                    await page.call("Emulation.setDeviceMetricsOverride", **size)
                    yield page
                finally:
                    listening.cancel()


@contextmanager
def _started(width: int, height: int) -> Iterator[int]:
    """A browser; yields the port of its DevTools."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise PartMissingError("there is no chromium: sh scripts/install_deploy_parts.sh")
    with tempfile.TemporaryDirectory(prefix="committerd-chromium-", ignore_cleanup_errors=True) as folder:
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
        more = ("--disable-background-networking", "--hide-scrollbars", "--remote-debugging-port=0")
        own = (f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank")
        process = subprocess.Popen(
            [program, *options, *more, *own], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield _port(Path(folder, "DevToolsActivePort"), process)
        finally:
            process.kill()
            process.wait()


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    """The port that the browser has chosen."""
    for _ in range(int(_START_SECONDS_MAX / _POLL_SECONDS)):
        if file.is_file() and "\n" in (text := file.read_text()):
            return int(text.splitlines()[0])
        assert process.poll() is None, "chromium has ended"
        time.sleep(_POLL_SECONDS)
    raise AssertionError("chromium did not start")
