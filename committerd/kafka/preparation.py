"""Prepares the topics of the datasets of a member: creates or checks them, for all that wait at the same time together.

A hundred datasets that begin together take a few requests, not a few for each. A dataset whose topics are not there
yet waits for them, because another process may be creating them; the others go on. No thread waits: whoever no longer
wants a dataset's topics, as at SIGTERM, is not held up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio import CapacityLimiter, to_thread

from committerd.errors import QueueUnavailable, SettingsError
from committerd.kafka.admin import TopicAdmin
from committerd.kafka.topics import TopicSurvey, survey_all, without_leader
from committerd.settings.kafka import KafkaSettings

_log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.05
"""How long the first look at a new dataset waits for others that come at the same time."""
_LOOK_SECONDS = 1.0
"""How often the topics that are not there are looked for."""
_LEADER_SECONDS = 0.1
"""How often topics that were created just now are looked at, until they have leaders."""
_TOGETHER_MAX = 50
"""How many datasets are looked at in one request. Kafka's controller takes 10,000 records at a time: for each dataset,
one for each topic, partition and setting."""
_LEADERS_SECONDS_MAX = 2.0
"""How long the other datasets wait for topics that were created and have no leader yet."""
_SAY_SECONDS = 10.0


@dataclass(eq=False, slots=True, kw_only=True)
class _Asked:
    """A dataset whose topics are wanted."""

    dataset: str
    joins: bool
    takes_longer: Callable[[], None]
    began: float
    until: float
    said_at: float = float("-inf")
    created: list[str] = field(default_factory=list)
    done: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None


class TopicPreparation:
    """Prepares topics while `run` runs."""

    def __init__(self, settings: KafkaSettings, group: str, *, admin: TopicAdmin) -> None:
        self._settings = settings
        self._group = group
        self._admin = admin
        self._waiting: dict[_Asked, None] = {}
        self._came = anyio.Event()
        self._lane = CapacityLimiter(1)
        self._group_is_right = False

    async def prepare(self, dataset: str, *, joins: bool, takes_longer: Callable[[], None]) -> None:
        """Create the dataset's missing topics if the settings say so, then check all of them, and access to the group.

        Waits up to `bootstrap_timeout_ms` for topics that are missing or not ready. With `joins` False it only checks
        the topics, and waits for nothing. `takes_longer` is called when the topics are not there at once.

        Raises `SettingsError` that lists all problems and their remedies, and `QueueUnavailable` if Kafka doesn't
        respond.
        """
        now = anyio.current_time()
        seconds = self._settings.bootstrap_timeout_ms / 1000 if joins else 0
        asked = _Asked(dataset=dataset, joins=joins, takes_longer=takes_longer, began=now, until=now + seconds)
        self._waiting[asked] = None
        self._came.set()
        try:
            await asked.done.wait()
        finally:
            self._waiting.pop(asked, None)
        if asked.error is not None:
            raise asked.error

    async def run(self) -> None:
        """Look at the topics of the datasets that wait, until cancelled."""
        while True:
            with anyio.move_on_after(self._pause()):
                await self._came.wait()
                await anyio.sleep(_GATHER_SECONDS)
            self._came = anyio.Event()
            for joins in (True, False):
                waiting = [asked for asked in self._waiting if asked.joins is joins]
                for start in range(0, len(waiting), _TOGETHER_MAX):
                    await self._look_at(waiting[start : start + _TOGETHER_MAX], joins)

    def _pause(self) -> float | None:
        """How long to wait for the next look, in seconds; None = until a dataset comes."""
        if not self._waiting:
            return None
        return _LEADER_SECONDS if any(asked.created for asked in self._waiting) else _LOOK_SECONDS

    async def _look_at(self, some: Sequence[_Asked], joins: bool) -> None:
        names = [asked.dataset for asked in some]
        found: dict[str, TopicSurvey | Exception]
        try:
            look = partial(self._survey, names, joins)
            found = await to_thread.run_sync(look, limiter=self._lane, abandon_on_cancel=True)
        except Exception as error:  # noqa: BLE001  # each dataset raises it, and the others go on
            found = dict.fromkeys(names, error)
        now = anyio.current_time()
        for asked in some:
            failed = _failure(asked, found[asked.dataset])
            if failed is None or now >= asked.until or not _may_pass(failed, found[asked.dataset]):
                asked.error = failed
                self._waiting.pop(asked, None)
                asked.done.set()
                continue
            if not asked.created or now - asked.began > _LEADERS_SECONDS_MAX:
                asked.takes_longer()
            if now - asked.said_at >= _SAY_SECONDS:
                asked.said_at = now
                facts = {
                    "dataset": asked.dataset,
                    "error": str(failed),
                    "gives_up_in_seconds": round(asked.until - now),
                }
                _log.warning("kafka.topics_awaited", extra=facts)

    def _survey(self, names: Sequence[str], joins: bool) -> dict[str, TopicSurvey | Exception]:
        create = joins and self._settings.topics_mode == "create"
        found: dict[str, TopicSurvey | Exception] = {**survey_all(self._admin, self._settings, names, create=create)}
        if joins and not self._group_is_right:
            try:
                self._admin.require_group(self._group)
                self._group_is_right = True
            except SettingsError as error:
                found = {name: error if _is_right(one) else one for name, one in found.items()}
        return found


def _failure(asked: _Asked, found: TopicSurvey | Exception) -> Exception | None:
    """Why the dataset's topics can't be used now; None if they can."""
    if isinstance(found, Exception):
        return found
    asked.created += found.created
    if leaderless := without_leader(found, asked.created):
        return QueueUnavailable(leaderless)
    listed = "\n".join(f"  - {check.problem}" for check in found.checks if check.problem)
    return SettingsError(f"the topics of dataset {asked.dataset} can't be used:\n{listed}") if listed else None


def _may_pass(error: Exception, found: TopicSurvey | Exception) -> bool:
    """Whether the error may be gone in a while, because Kafka responds again or another process creates topics."""
    if isinstance(error, QueueUnavailable):
        return True
    if isinstance(found, Exception):
        return False
    return all(check.setting == "topic" for check in found.checks if check.problem)


def _is_right(found: TopicSurvey | Exception) -> bool:
    return not isinstance(found, Exception) and not any(check.problem for check in found.checks)
