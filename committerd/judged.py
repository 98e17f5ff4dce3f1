"""What `judge` is asked, and what it answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from committerd.errors import CommitterError, RequestError, UnsupportedRequest
from committerd.format.manifest_file import ManifestFile
from committerd.format.messages import Transaction
from committerd.reasons import INVALID_REASONS
from committerd.rules.answers import Status
from committerd.rules.conflicts import NOTHING_FOUND, Findings
from committerd.rules.draft import CreateOptions
from committerd.rules.ledger import Refused
from committerd.rules.validation import Allowed
from committerd.staged_files import Copy, FileLimits, LookedAt, OpenStore
from committerd.working import Work, at_once

_SAID_CHARS_MAX = 150
"""Of the message of an unexpected error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """What is asked and allowed beside the transaction itself."""

    allowed: Allowed = field(default_factory=Allowed)
    verify_files: bool = False
    """Look whether the files are there that it brings."""
    file_limits: FileLimits = field(default_factory=FileLimits)
    looked: LookedAt | None = None
    """Which of its files were looked at already; what is found now is noted there."""
    rules_out_duplicate: bool = False
    """Something else than the history knows that it was not committed before."""
    create: CreateOptions = field(default_factory=CreateOptions)
    create_only: bool = False
    copy_clone: bool = False
    """A deep Clone copies the files; else they must be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What comes from outside: clock, dice, ids, and a way to other tables."""

    wall_clock: Callable[[], datetime]
    random: random.Random
    new_uuid: Callable[[], UUID]
    ahead_max: timedelta | None = None
    """How far ahead of the clock a version may be dated, to be later than the one before; None = as far as needed."""
    open_store: OpenStore | None = None
    """None = bases and clone sources can't be read."""
    work: Work = at_once
    """Does what may take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A transaction that may be committed on top of the version that it was judged against."""

    transaction: Transaction
    """Normalised, rebased."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """To be written before, by key."""
    copies: Sequence[Copy] = ()
    found: Findings = NOTHING_FOUND
    create: CreateOptions = field(default_factory=CreateOptions)
    restored: ManifestFile | None = None
    source: ManifestFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected(Refused):
    """A transaction that is not committed, and how that was found."""

    rule: str = ""
    found: Findings = NOTHING_FOUND


INTERNAL_ERROR = "internal_error"
"""The reason of a record on which committerd itself fails."""


def refused_by(error: RequestError, found: Findings = NOTHING_FOUND) -> Rejected:
    """How a request that can never succeed is answered."""
    unsupported = isinstance(error, UnsupportedRequest)
    return Rejected(
        status=Status.UNSUPPORTED if unsupported else Status.INVALID,
        reason=error.code,
        message=str(error),
        found=found,
    )


def mishandled(error: Exception) -> Rejected:
    """The answer to a record on which committerd fails with an unexpected error.

    An error with a code that producers know keeps it: it says what is wrong better than `internal_error` does.
    """
    if isinstance(error, RequestError):
        return refused_by(error)
    code = error.code if isinstance(error, CommitterError) else ""
    return Rejected(
        status=Status.INVALID,
        reason=code if code in INVALID_REASONS else INTERNAL_ERROR,
        message=f"committerd failed on this record and has not committed it: {type(error).__name__}: "
        f"{str(error)[:_SAID_CHARS_MAX]}. The committer's log has the traceback; report the error",
    )
