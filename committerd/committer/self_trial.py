"""The self-trial: the committer decodes, judges and builds changes that it has made itself, and puts none of them.

It tells the fault of records from that of a release or a machine: what fails on plain changes, or where there is no
record at all, fails on the records of everybody.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NoReturn

import anyio

from committerd.committer.containing import Containment, Stage
from committerd.committer.deciding import Decider, Queued
from committerd.committer.decoding import Decoder
from committerd.committer.head import Head
from committerd.committer.intake import Pending
from committerd.committer.members import FormedVersion
from committerd.committer.prefetching import Prefetched
from committerd.lance.operations.permissions import ALL_OPERATIONS, Permissions
from committerd.queue.port import Record
from committerd.table.needs import NOTHING_KNOWN, Steps
from committerd_common.messages import DataFile, DataFragment, Manifest, Transaction

_log = logging.getLogger(__name__)

_ROOM_FILES, _ROOM_BYTES = 16, 64 * 1024 * 1024
"""What the machine must have room for besides what is in use: far more than the work on a small record needs."""

Decided = FormedVersion | int | None


@dataclass(slots=True)
class _Raising(Containment):
    """Raises every error on a change of our own."""

    def refuse(self, error: Exception, *, stage: Stage, offset: int) -> NoReturn:
        raise error


async def self_trial(
    decider: Decider, decoder: Decoder, head: Head, run: Callable[[Steps[Decided]], Awaitable[Decided]]
) -> Exception | None:
    """Form a version on `head` from an Append, a Delete, an Update and an UpdateConfig each; returns what fails.

    A change that is refused, because the table can't take it, is no failure. `run` runs a decision.
    """
    try:
        await _try_itself(decider, decoder, head, run)
    except Exception as error:  # noqa: BLE001  # the caller decides whose fault it is
        _log.error("self_trial.failed", extra={"error": repr(error)}, exc_info=error)
        return error
    _log.info("self_trial.passed", extra={"version": head.version})
    return None


async def _try_itself(
    decider: Decider, decoder: Decoder, head: Head, run: Callable[[Steps[Decided]], Awaitable[Decided]]
) -> None:
    _require_room()
    if head.manifest is None:
        return
    await head.table.standing(head.version)
    containment = _Raising()
    options = replace(decider.options, verify_files="never", allowed=Permissions(operations=ALL_OPERATIONS))
    decider = replace(decider, options=options, containment=containment, before_table={})
    decoder = replace(decoder, containment=containment)
    offset = max([head.position.next_offset, *head.position.settled]) + 1
    now_ms = int(decider.sources.wall_clock().timestamp() * 1000)
    for change in _changes(head.manifest.outline, head.manifest.fragments.of([head.manifest.fragments.last_id])):
        change.uuid, change.read_version = str(decider.sources.new_uuid()), head.version
        value = change.SerializeToString()
        pending = Pending(Record(offset=offset, value=value, timestamp_ms=now_ms), len(value))
        request = await decoder.decode(pending.record, head.table)
        known = Prefetched(pending, request, NOTHING_KNOWN, anyio.current_time())
        await run(decider.decide(head, Queued(ordered=[known], waiting=[pending])))


def _require_room() -> None:
    """Raise the machine's error if there is no room for a thread, a few files and some memory."""
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    with ExitStack() as files:
        for _ in range(_ROOM_FILES):
            files.enter_context(open(os.devnull, "rb"))
    mmap.mmap(-1, _ROOM_BYTES).close()


def _changes(outline: Manifest, last: Sequence[DataFragment]) -> Iterator[Transaction]:
    """Yield the changes, without uuid and read version. `last`: the last fragment of the table, if it has any."""
    added = DataFragment(physical_rows=1)
    for file in [one for fragment in last for one in fragment.files] or [_file(outline)]:
        added.files.add().CopyFrom(file)
        added.files[-1].path = f"self-trial-{len(added.files)}.lance"
    yield Transaction(append=Transaction.Append(fragments=[added]))
    removed = [one.id for one in last]
    if removed:
        yield Transaction(delete=Transaction.Delete(deleted_fragment_ids=removed, predicate="true"))
        yield Transaction(update=Transaction.Update(removed_fragment_ids=removed, new_fragments=[added]))
    config = Transaction()
    config.update_config.config_updates.update_entries.add(key="self-trial", value="")
    yield config


def _file(outline: Manifest) -> DataFile:
    fields = [field.id for field in outline.fields]
    return DataFile(fields=fields, column_indices=range(len(fields)), file_major_version=2, file_minor_version=0)
