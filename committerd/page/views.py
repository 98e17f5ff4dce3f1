"""What the page shows of the datasets of a process, as values for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from committerd import __version__
from committerd.errors import CommitterError
from committerd.maintenance.left_alone import read_failed
from committerd.maintenance.report import read_figures
from committerd.page.recent import Recent
from committerd.stores.port import ObjectStore

_MAINTENANCE_MS = 30_000
"""How long what was read of maintenance is shown again."""
_STORE_SECONDS_MAX = 2.0
"""How long an answer waits for the store. The page is wanted most while the store does not respond."""
_LEFT_ALONE_MAX = 20

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What a member does for a dataset at this moment."""

    well: bool
    state: str
    """One word: active, standby, paused, ..."""
    text: str
    version: int = 0
    position: int | None = None
    end: int | None = None
    """End of the staged partition; None = not known."""
    oldest_ms: int | None = None
    """Kafka's timestamp of the oldest record that waits; None = none, or not active."""
    member: str = ""
    """Its state in the consumer group; empty while it does not run."""
    most_waiting: Mapping[str, int] = field(default_factory=dict)
    """How many records wait, by producer (`queue.most_waiting`), the most first."""


class DatasetView:
    """One dataset on the page, for as long as the process serves it."""

    def __init__(
        self,
        *,
        name: str,
        uri: str,
        now_ms: Callable[[], int],
        look: Callable[[], Now],
        store: Callable[[], ObjectStore | None],
    ) -> None:
        """`look`: says what the member does. `store`: that of the table; None while it is not open."""
        self.name, self.uri = name, uri
        self.recent = Recent(now_ms)
        self._now_ms, self._look, self._store = now_ms, look, store
        self._state: tuple[str, str] = ("", "")
        self._since_ms = now_ms()
        self._maintenance: Json | None = None
        self._maintenance_ms = 0

    def watch(self) -> Now:
        """Look what the member does, and note since when."""
        now = self._look()
        if (now.state, now.member) != self._state:
            self._state, self._since_ms = (now.state, now.member), self._now_ms()
        return now

    def summary(self) -> Json:
        """What it does, and where it stands."""
        now, now_ms = self.watch(), self._now_ms()
        waits = None if now.oldest_ms is None else max(now_ms - now.oldest_ms, 0)
        is_active = now.member == "active"
        lag = max(now.end - now.position, 0) if is_active and now.end is not None and now.position is not None else None
        return {
            "name": self.name,
            "uri": self.uri,
            "well": now.well,
            "state": now.state,
            "text": now.text,
            "since_ms": self._since_ms,
            "member": now.member,
            "version": now.version,
            "position": now.position,
            "end": now.end,
            "lag": lag,
            "oldest_waits_ms": waits,
            "most_waiting": [{"producer": name, "records": count} for name, count in now.most_waiting.items()],
        }

    async def details(self) -> Json:
        """The summary, with figures, conflicts and maintenance."""
        return self.summary() | {
            "minutes": self.recent.minutes(),
            "conflicts": self.recent.conflicts(),
            "maintenance": await self._maintained(),
        }

    async def _maintained(self) -> Json:
        """What maintenance has written into the table; read at most once in 30 s."""
        store, now_ms = self._store(), self._now_ms()
        if self._maintenance is None or now_ms - self._maintenance_ms > _MAINTENANCE_MS:
            self._maintenance_ms = now_ms
            if store is None:
                self._maintenance = _unknown("the table is not open")
            else:
                # Others who ask meanwhile see what was read before.
                self._maintenance = self._maintenance or _unknown("it is being read")
                self._maintenance = await _maintenance_of(store, now_ms)
        return self._maintenance


def _unknown(problem: str) -> Json:
    return {"cleanup": None, "left_alone": [], "problem": problem}


async def _maintenance_of(store: ObjectStore, now_ms: int) -> Json:
    try:
        with anyio.move_on_after(_STORE_SECONDS_MAX):
            return await _read_maintenance(store, now_ms)
    except CommitterError as error:
        return _unknown(str(error))
    return _unknown(f"the store has not responded within {_STORE_SECONDS_MAX:.0f} s")


async def _read_maintenance(store: ObjectStore, now_ms: int) -> Json:
    cleanup = await read_figures(store)
    failed = (await read_failed(store)).left_alone(now_ms)
    return {
        "cleanup": None if cleanup is None else dict(cleanup),
        "left_alone": [
            {"fragments": len(one.fragments), "index": one.index, "why": one.why, "until_ms": one.until_ms}
            for one in failed[:_LEFT_ALONE_MAX]
        ],
        "problem": "",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What the page shows of the process."""

    host: str
    now_ms: Callable[[], int]
    started_ms: int
    datasets: Callable[[], Sequence[DatasetView]]
    """Those that it serves now, by name."""

    def watch(self) -> None:
        """Note what each dataset does; call it about once a second."""
        for one in self.datasets():
            one.watch()

    async def status(self, dataset: str | None) -> Json | None:
        """The process, all datasets briefly, and one of them in detail; None if there is no such dataset.

        `dataset`: its name; None = the first.
        """
        found = self.datasets()
        chosen = _chosen(found, dataset)
        if chosen is None and dataset is not None:
            return None
        return {
            "committerd": __version__,
            "host": self.host,
            "time_ms": self.now_ms(),
            "started_ms": self.started_ms,
            "datasets": [one.summary() for one in found],
            "dataset": None if chosen is None else await chosen.details(),
        }

    async def transactions(self, dataset: str | None) -> Json | None:
        """The last transactions of a dataset; None if there is no such dataset."""
        chosen = _chosen(self.datasets(), dataset)
        if chosen is None:
            return None if dataset is not None else {"dataset": None, "transactions": []}
        return {"dataset": chosen.name, "transactions": chosen.recent.transactions()}


def _chosen(found: Sequence[DatasetView], name: str | None) -> DatasetView | None:
    if name is None:
        return found[0] if found else None
    return next((one for one in found if one.name == name), None)
