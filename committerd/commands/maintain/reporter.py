"""What `committerd maintain` prints: lines for people, JSON for programs."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from committerd.commands.maintain.rewriting import CommittedRewrite
from committerd.commands.printing import ProgressLine, echo_fields, echo_table, plain, size
from committerd.errors import CommitterError
from committerd.maintenance.cleaning import CleanupPlan, CleanupResult
from committerd.maintenance.files import RemovalReason
from committerd.maintenance.left_alone import Failure
from committerd.queue.position import Pause
from committerd.settings.maintain import MaintainSettings
from committerd_client.maintenance.plan import MaintenancePlan, RewriteGroup
from committerd_client.maintenance.table import IndexState, TableState

_log = logging.getLogger("committerd.maintain")
_GROUPS_SHOWN_MAX = 20
_PROGRESS_SECONDS = 3.0
"""Shortest time between two lines about the progress of a cleanup, and shortest wait about which there is a line."""
_REASONS = {
    RemovalReason.MANIFEST: "manifest of one of these versions",
    RemovalReason.VERSION: "named only by these versions",
    RemovalReason.UNNAMED: "named by no version and no waiting record",
    RemovalReason.TEMPORARY: "left behind by a writer in the middle of a write",
}


class Reporter:
    """Reports each step when it is done: as a log line, as one JSON object in a line, or as a line of text."""

    def __init__(self, *, as_json: bool, logged: bool, dataset: str = "") -> None:
        """`logged`: by the log, whatever `as_json` says. `dataset`: named in each line, if the process has many."""
        self._dataset = dataset
        self._as_json = as_json
        self._logged = logged
        self._said_at = time.monotonic()
        """When the progress of a cleanup was printed last."""

    def plan(
        self, state: TableState, plan: MaintenancePlan, settings: MaintainSettings, left_alone: Sequence[Failure] = ()
    ) -> None:
        """The state of the table, and what would be done. `left_alone`: what an earlier run has failed to rewrite."""
        if self._as_json:
            self._json("plan", table=_state(state), left_alone=[asdict(one) for one in left_alone], **_plan(plan))
            return
        echo_fields(
            [
                ("version", str(state.version)),
                (
                    "fragments",
                    f"{len(state.fragments)} of {size(state.bytes)} with {state.rows} rows; {plan.small} are small, "
                    f"target: at most {settings.fragments_max}",
                ),
                ("unindexed", f"{state.unindexed_rows} rows; target: at most {settings.unindexed_rows_max}"),
            ]
        )
        if plan.empty:
            click.echo("\nThere is nothing to do.")
        if plan.groups:
            read = sum(one.bytes for one in plan.groups)
            click.echo(f"\n{len(plan.groups)} tasks would rewrite {size(read)}:")
            echo_table(
                ("fragments", "first", "rows", "bytes", "why"),
                [
                    (len(one.fragments), one.fragments[0], one.rows, size(one.bytes), one.why.value)
                    for one in plan.groups[:_GROUPS_SHOWN_MAX]
                ],
            )
            if len(plan.groups) > _GROUPS_SHOWN_MAX:
                click.echo(f"  and {len(plan.groups) - _GROUPS_SHOWN_MAX} more")
        for index in plan.indices:
            click.echo(
                f"\nIndex {plain(index.name)} would be optimized: it lacks {index.unindexed_rows} rows, and has "
                f"{index.segments} segments."
            )
        for one in left_alone:
            what = f"index {plain(one.index)}" if one.index else _fragments(one.fragments)
            click.echo(f"\nLeft alone: {what}: {plain(one.why)}")
        if plan.too_large:
            click.echo(
                f"\n{len(plan.too_large)} fragments are too large for a task, and stay as they are: raise "
                "maintain.task_bytes_max or maintain.task_seconds_max."
            )

    def begins(self, groups: Sequence[RewriteGroup]) -> None:
        """Some fragments are about to be rewritten."""
        if not self._as_json and not self._logged:
            count, read = sum(len(one.fragments) for one in groups), sum(one.bytes for one in groups)
            self._line(f"rewriting {count} fragments of {size(read)} ...", err=True)

    def leaves_committer(self, seconds: float) -> None:
        """The next task waits because of maintain.committer_share."""
        if not self._as_json and not self._logged and seconds > _PROGRESS_SECONDS:
            self._line(f"leaving the committer to others for {seconds:.0f} s (maintain.committer_share) ...", err=True)

    def rewritten(self, done: CommittedRewrite | None) -> None:
        """They have been rewritten; None: others have rewritten or deleted all of them."""
        if done is None:
            self._say("rewritten", {"version": None}, "nothing was rewritten: others have changed these fragments")
            return
        for alone in done.left_alone:
            self._leaves_alone({"fragments": list(alone.fragments)}, _fragments(alone.fragments), alone.why)
        if done.version is None:
            return
        self._say(
            "rewritten",
            {name: value for name, value in asdict(done).items() if name != "left_alone"},
            f"version {done.version}: {done.fragments_before} fragments became {done.fragments_after}, "
            f"{size(done.bytes_read)} became {size(done.bytes_written)}, in {done.seconds:.1f} s",
        )

    def left_alone(self, index: str, why: str) -> None:
        """An index can't be kept up to date, and is left alone."""
        self._leaves_alone({"index": index}, f"index {plain(index)}", why)

    def _leaves_alone(self, facts: Mapping[str, Any], what: str, why: str) -> None:
        if self._logged:
            _log.warning("maintain.leaves_alone", extra={**facts, "error": why})
        elif self._as_json:
            self._json("left_alone", **facts, error=why)
        else:
            self._line(f"left alone: {what}: {plain(why)}", err=True)

    def indexed(self, index: IndexState, version: int | None) -> None:
        """An index has been optimized; `version` None: others have done it."""
        facts = {"index": index.name, "unindexed_rows": index.unindexed_rows, "version": version}
        done = f"version {version}: index {plain(index.name)} has the {index.unindexed_rows} rows that it lacked"
        self._say("indexed", facts, done if version is not None else f"index {plain(index.name)}: others did it")

    def reads(self, versions: int) -> Callable[[int], None]:
        """A cleanup is about to read so many versions; what is returned takes the number of those just read."""
        if self._as_json or self._logged:
            return lambda _: None
        what = f"{plain(self._dataset)}: versions read" if self._dataset else "versions read"
        return ProgressLine(what, versions).add

    def cleanup(self, found: CleanupPlan) -> None:
        """What would be deleted."""
        removable, kept = found.choice.removable, Counter(one.value for one in found.choice.kept.values())
        if self._as_json:
            self._json(
                "cleanup",
                versions=list(removable),
                kept=dict(kept),
                bytes=found.bytes,
                files={
                    why.value: dict(zip(("files", "bytes"), found.count(why), strict=True)) for why in RemovalReason
                },
                unneeded_bytes=found.unneeded_bytes,
                oldest_read_version=found.oldest_read_version,
                waiting_records=found.waiting_records,
            )
            return
        reasons = ", ".join(f"{count} {why}" for why, count in sorted(kept.items()))
        versions = _counted(len(removable), "version")
        click.echo(f"\n{versions} would be deleted; {kept.total()} kept ({reasons}).")
        for why, text in _REASONS.items():
            count, bytes_ = found.count(why)
            if count:
                click.echo(f"  {_counted(count, 'file')} of {size(bytes_)}: {text}")
        if found.unneeded_bytes:
            click.echo(f"  {size(found.unneeded_bytes)} that nothing needs stay until they are old enough")

    def deletes(self, deletion: Mapping[str, Any]) -> None:
        """A file is about to be deleted."""
        if self._logged:
            _log.debug("maintain.deletes", extra=dict(deletion))
        elif self._as_json:
            self._json("deletes", **deletion)

    def passes_over(self, key: str, reason: str) -> None:
        """An object can't be read or deleted, and is left alone."""
        if self._logged:
            _log.warning("maintain.passed_over", extra={"key": key, "error": reason})
        elif self._as_json:
            self._json("passed_over", key=key, error=reason)
        else:
            self._line(f"passed over {plain(key)}: {plain(reason)}", err=True)

    def deleted(self, cleaned: CleanupResult, files: int) -> None:
        """A step of a cleanup has ended; `files`: how many the whole cleanup found to delete."""
        facts = {"versions": cleaned.versions, "files": cleaned.files, "bytes": cleaned.bytes, "files_found": files}
        if self._logged:
            _log.info("maintain.deleted", extra=facts)
        elif not self._as_json and time.monotonic() - self._said_at > _PROGRESS_SECONDS:
            self._said_at = time.monotonic()
            self._line(f"deleted {cleaned.files} of {files} files, {size(cleaned.bytes)} ...", err=True)

    def cleaned(self, found: CleanupPlan, cleaned: CleanupResult, *, seconds: float) -> None:
        """Old versions and files have been deleted."""
        text = (
            f"deleted {_counted(cleaned.versions, 'version')}, {_counted(cleaned.files, 'file')} of "
            f"{size(cleaned.bytes)}, in {seconds:.1f} s"
        )
        facts = {**asdict(cleaned), "unneeded_bytes": found.unneeded_bytes, "seconds": seconds}
        self._say("cleaned", facts, text)

    def failed(self, step: str, error: Exception) -> None:
        """A step has failed; it is tried again."""
        code = error.code if isinstance(error, CommitterError) else type(error).__name__
        facts = {"step": step, "code": code, "error": str(error)}
        if self._logged:
            _log.warning("maintain.failed", extra=facts)
        elif self._as_json:
            self._json("failed", **facts)
        else:
            self._line(f"{step} failed: {plain(str(error))}", err=True)

    def gave_up(self, *, left: int, tasks: int) -> None:
        """A task has failed, and no others begin."""
        if self._as_json:
            self._json("gave_up", tasks=tasks, not_begun=left)
        else:
            text = f"{left} of {tasks} tasks were not begun after this failure; the next run plans them again"
            self._line(text, err=True)

    def hours_over(self, hours: str) -> None:
        """The hours in which work may begin are over, or have not begun."""
        self._say("outside_hours", {"hours": hours}, f"maintain.hours is {hours} (UTC): nothing more is begun now")

    def waits_for_table(self) -> None:
        """There is no table."""
        self._say("waits_for_table", {}, "there is no table: maintenance begins when somebody has created it")

    def paused(self, pause: Pause) -> None:
        """The queue is paused."""
        self._say(
            "paused",
            {"reason": pause.reason, "who": pause.who, "since_ms": pause.since_ms},
            f"nothing is begun now: the queue is {pause}",
        )

    def _say(self, event: str, facts: Mapping[str, Any], text: str) -> None:
        if self._logged:
            _log.info("maintain.done", extra={"step": event, **facts})
        elif self._as_json:
            self._json(event, **facts)
        else:
            self._line(text)

    def heading(self) -> None:
        """What follows is about this dataset."""
        if not self._as_json:
            click.echo(f"\n{plain(self._dataset)}\n")

    def failed_tables(self, names: Sequence[str], tables: int) -> None:
        """For these datasets something has failed; all of them have been worked on."""
        if self._as_json:
            self._json("failed_tables", datasets=list(names), tables=tables)
        else:
            shown = ", ".join(map(plain, names))
            click.echo(f"something failed for {len(names)} of {_counted(tables, 'table')}: {shown}", err=True)

    def _line(self, text: str, *, err: bool = False) -> None:
        click.echo(f"{plain(self._dataset)}: {text}" if self._dataset else text, err=err)

    def _json(self, event: str, **facts: Any) -> None:
        about = {"dataset": self._dataset} if self._dataset else {}
        click.echo(json.dumps({"event": event, **about, **facts}))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _fragments(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:_GROUPS_SHOWN_MAX]))
    return f"{_counted(len(ids), 'fragment')} ({shown}{', ...' if len(ids) > _GROUPS_SHOWN_MAX else ''})"


def _state(state: TableState) -> dict[str, Any]:
    return {
        "version": state.version,
        "fragments": len(state.fragments),
        "rows": state.rows,
        "bytes": state.bytes,
        "deleted_rows": sum(one.deleted for one in state.fragments),
        "indices": [asdict(one) for one in state.indices],
    }


def _plan(plan: MaintenancePlan) -> dict[str, Any]:
    return {
        "groups": [
            {"fragments": list(one.fragments), "rows": one.rows, "bytes": one.bytes, "why": one.why.value}
            for one in plan.groups
        ],
        "waiting": plan.waiting,
        "optimize": [one.name for one in plan.indices],
        "too_large": list(plan.too_large),
    }
