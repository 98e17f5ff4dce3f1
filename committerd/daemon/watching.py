"""Watches the file that names the datasets: tables come and go while the others are served.

It is read every few seconds and compared with what it held, because the file of a mounted ConfigMap is replaced by a
link, which no notification tells.
"""

from __future__ import annotations

import logging

import anyio
from anyio import to_thread

from committerd.daemon.hosted import Hosting
from committerd.errors import SettingsError
from committerd.settings.load import DatasetsFile
from committerd.telemetry import ProcessTelemetry

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0


class DatasetsWatch:
    """Applies what the file says to the datasets that the process hosts."""

    def __init__(self, file: DatasetsFile, content: bytes, hosting: Hosting, telemetry: ProcessTelemetry) -> None:
        """`content`: what has been applied already."""
        self._file = file
        self._content: bytes | None = content
        self._hosting = hosting
        self._telemetry = telemetry
        self.trouble = ""
        """What is wrong with the file; empty if it is applied. While it is wrong, nothing changes."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            try:
                await self._look()
            except SettingsError as error:
                self._refuse(str(error))

    async def _look(self) -> None:
        """Read the file, and apply it if it has changed."""
        content = await to_thread.run_sync(self._file.read)
        if content == self._content:
            return
        self._content = None  # a file that was wrong is looked at again, even if it becomes what it was before
        wanted = await to_thread.run_sync(self._file.settings_in, content)
        self._content, self.trouble = content, ""
        self._telemetry.datasets_file_wrong.set(0)
        changes = self._hosting.apply(wanted)
        for change, names in changes.items():
            self._telemetry.datasets_changes.add(len(names), change=change)
        _log.info("datasets.changed", extra=dict(changes))

    def _refuse(self, trouble: str) -> None:
        if trouble != self.trouble:
            self._telemetry.datasets_changes.add(change="refused")
            _log.error("datasets.refused", extra={"error": trouble})
        self.trouble, self._content = trouble, None
        self._telemetry.datasets_file_wrong.set(1)
