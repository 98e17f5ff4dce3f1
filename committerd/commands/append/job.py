"""What a job of `committerd append` has appended, as the table itself records it. No I/O.

A job is a name for any number of runs. Its record is one entry of `table_metadata`, with 16 bytes for each file: who
the file is (its path or URI), and what it holds (its size and content). A run plans its new files in the record, then
commits each as a transaction whose uuid follows from the plan, and notes at last what is in the table. So a run that
was killed leaves plans, and whether their uuids are in the table is a question that table and committer can answer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from committerd.errors import CommitterError

FILES_MAX = 10_000
"""Files that a record may hold. Each adds 22 bytes to every later version of the table."""
_KEY_PREFIX = "committerd-append."
_FORMAT = 1
_UUIDS = uuid.UUID("6b0f7ad1-5a1c-4f0e-9a53-0d8f0f1f2c11")
"""The namespace of the uuids of this command."""
_PLAN = struct.Struct(">8s8sQQ")


@dataclass(frozen=True, slots=True, order=True)
class FileId:
    """A file is its name and its content."""

    name: bytes
    """8 bytes: a hash of the path or URI."""
    content: bytes
    """8 bytes: a hash of size and content."""


def file_id(name: str, size: int, content: str | bytes) -> FileId:
    """`name`: absolute path or URI. `content`: a hash of the bytes, an ETag, or what else changes with them."""
    text = content.encode() if isinstance(content, str) else content
    return FileId(_hash(name.encode("utf-8", "surrogateescape")), _hash(b"%d:" % size + text))


@dataclass(frozen=True, slots=True)
class Plan:
    """A file that a run is about to append."""

    file: FileId
    token: int
    """A random number below 2^64: two plans of one file have different uuids."""
    version: int
    """The table's version when it was planned: no version up to this version has the file's transaction."""

    def uuid(self, job: str, execution: int) -> str:
        """The uuid of the n-th execution; a refused transaction is executed again under another uuid."""
        parts = (job, self.file.name.hex(), self.file.content.hex(), f"{self.token:x}", str(execution))
        return str(uuid.uuid5(_UUIDS, "/".join(parts)))


@dataclass(frozen=True, slots=True)
class Record:
    """The files of a job."""

    done: Mapping[bytes, bytes]
    """Content of each file that is in the table, by name."""
    plans: Mapping[FileId, Plan]
    """What runs have planned, and have not noted as done or dropped."""

    def has(self, file: FileId) -> bool:
        """Whether the file is in the table."""
        return self.done.get(file.name) == file.content

    def differs(self, file: FileId) -> bool:
        """Whether another content under the same name is in the table."""
        return self.done.get(file.name, file.content) != file.content

    def earlier_plans(self, files: Iterable[FileId]) -> list[Plan]:
        """The plans that there are for these names, whatever the content."""
        names = {file.name for file in files}
        return [plan for plan in self.plans.values() if plan.file.name in names]

    def planned(self, files: Iterable[FileId], *, version: int, token: Callable[[], int]) -> Record:
        """With a plan for each file that is neither done nor planned. Raises `CommitterError` if it is full."""
        new = {one: Plan(one, token(), version) for one in files if one not in self.plans and not self.has(one)}
        made = replace(self, plans={**self.plans, **new})
        if len(made.done) + len(made.plans) > FILES_MAX:
            raise CommitterError(
                f"the job would have {len(made.done) + len(made.plans):,} files, and the table records at most "
                f"{FILES_MAX:,} for one job: give the next files another --job",
                code="job_full",
            )
        return made

    def settled(self, done: Iterable[FileId], dropped: Iterable[FileId]) -> Record:
        """With these files in the table, and without the plans of the dropped files."""
        there = {one.name: one.content for one in done}
        gone = {*dropped, *(FileId(*pair) for pair in there.items())}
        return Record({**self.done, **there}, {one: plan for one, plan in self.plans.items() if one not in gone})


NOTHING = Record({}, {})


def key_of(job: str) -> str:
    """The key of the job's record in `table_metadata`."""
    return f"{_KEY_PREFIX}{job}"


def record_in(table_metadata: Mapping[str, str], job: str) -> Record:
    """The job's record in a version. Raises `CommitterError` if it can't be read."""
    text = table_metadata.get(key_of(job))
    if text is None:
        return NOTHING
    try:
        raw = json.loads(text)
        if raw["format"] != _FORMAT:
            raise ValueError(f"its format is {raw['format']}, of a newer committerd")
        done, plans = (base64.b64decode(raw[name], validate=True) for name in ("done", "plans"))
        pairs = [done[at : at + 16] for at in range(0, len(done), 16)]
        found = [Plan(FileId(name, content), *numbers) for name, content, *numbers in _PLAN.iter_unpack(plans)]
        if len(done) % 16:
            raise ValueError("its files are cut off")
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise CommitterError(
            f"the table's record of job {job!r} (table metadata {key_of(job)!r}) can't be read: {error}",
            code="job_unreadable",
        ) from error
    return Record({pair[:8]: pair[8:] for pair in pairs}, {plan.file: plan for plan in found})


def text_of(record: Record) -> str:
    """The record as it stands in the table."""
    done = b"".join(name + content for name, content in sorted(record.done.items()))
    plans = b"".join(
        _PLAN.pack(plan.file.name, plan.file.content, plan.token, plan.version)
        for _, plan in sorted(record.plans.items())
    )
    return json.dumps(
        {"format": _FORMAT, "done": base64.b64encode(done).decode(), "plans": base64.b64encode(plans).decode()}
    )


def executions(job: str, plans: Collection[Plan], most: int) -> dict[str, FileId]:
    """The uuids of the first `most` executions of each plan, and the file of each."""
    return {plan.uuid(job, number): plan.file for plan in plans for number in range(most)}


def _hash(given: bytes) -> bytes:
    return hashlib.blake2b(given, digest_size=8).digest()
