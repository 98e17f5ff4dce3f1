"""What the committer tries itself on (`Assembler.self_trial`): changes that it makes itself, and room on the machine.

It tells the fault of records from that of a release or a machine: what fails on plain changes, or where there is no
record at all, fails on the records of everybody.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NoReturn

from committerd.committer.containing import Containment, Stage
from committerd.lance.format.manifest_file import ManifestFile
from committerd_common.messages import DataFile, DataFragment, Manifest, Transaction

_ROOM_FILES, _ROOM_BYTES = 16, 64 * 1024 * 1024
"""What the machine must have room for besides what is in use: far more than the work on a small record needs."""


@dataclass(slots=True)
class Raising(Containment):
    """Raises every error on a change of our own."""

    def refuse(self, error: Exception, *, stage: Stage, offset: int) -> NoReturn:
        raise error


def require_room() -> None:
    """Raise the machine's error if there is no room for a thread, a few files and some memory."""
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    with ExitStack() as files:
        for _ in range(_ROOM_FILES):
            files.enter_context(open(os.devnull, "rb"))
    mmap.mmap(-1, _ROOM_BYTES).close()


def own_changes(manifest: ManifestFile) -> Iterator[Transaction]:
    """Yield an Append, a Delete, an Update and an UpdateConfig of this version, without uuid and read version."""
    outline, last = manifest.outline, manifest.fragments.of([manifest.fragments.last_id])
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
