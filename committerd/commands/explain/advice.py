"""What each status means, and what to do next; for some reasons more than that.

The tables of docs/wire-contract.md are generated from these texts, and `committerd explain` prints them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from committerd.queue.outcomes import Status

_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


class Advice(NamedTuple):
    """Both in Markdown."""

    means: str
    todo: str


STATUSES: Mapping[Status, Advice] = {
    Status.COMMITTED: Advice(
        "in the table, at `version`",
        "done. ReserveFragments: the ids are `reserved_first` and the `reserved_count` - 1 after it",
    ),
    Status.DUPLICATE: Advice(
        "the transaction (`uuid_seen`), or its app-version (`app_version_seen`), was committed before, at `version` "
        "where that is known",
        "done. Files that were written again are not needed",
    ),
    Status.RETRYABLE: Advice(
        "not committed: it conflicts with a transaction that was committed since `read_version` "
        "(`conflicting_version`, if a single version conflicts), or with a transaction that goes first because it has "
        "[reserved](decisions/reservations.md) its rows; or it was read at a version that the table has lost "
        "(`read_version_lost`), or its `app-after` is not the last unit in the table (`mark_moved`)",
        "open the latest version and do the work again: a new transaction with a new uuid, `retry-of` = the refused "
        "uuid, `attempt` = 2, 3, ... (`mark_moved`: read the table's mark of the application, and stage what is behind "
        "it, without `retry-of`). The committer takes it before records that wait. An Append may name the same data "
        "files again",
    ),
    Status.INCOMPATIBLE: Advice(
        "not committed; doing it again can't help",
        "report it: the table is no longer the one for which the work was meant",
    ),
    Status.INVALID: Advice(
        "not committed: the record is wrong. It is also a dead letter",
        "report it, with `reason` and `message`: the producer has to be changed",
    ),
    Status.UNSUPPORTED: Advice(
        "not committed: the record asks for something that committerd does not do. It is also a dead letter",
        "report it, with `reason` and `message`: the producer has to be changed",
    ),
    Status.EXPIRED: Advice("not committed; its deadline had passed", "do it again, or give it up"),
    Status.UNDECIDED: Advice(
        "the committer can neither find the transaction nor rule it out, because the versions since `read_version` "
        "were cleaned up",
        "stop. Never execute it again before a person has checked the table. With an `app-id`, the committer can "
        "decide most such cases",
    ),
}

REASONS: Mapping[str, str] = {
    "app_id_in_use": "give the new run an `app-id` of its own; or, if the old run is over for good, let the new one "
    "count from 0: `committerd app release ID`",
    "app_marks_full": "make room with `committerd app release ID`, or raise `commit.app_marks_max`; then "
    "`committerd dead replay OFFSET --apply`",
    "claim_missing": "write the file to `_transactions/` before the record is staged",
    "file_unreadable": "see whether the committer may read the file; then `committerd dead replay OFFSET --apply`",
    "future_read_version": "the producer has read another table, or a version that a restored table has lost: open "
    "the table at the committer's URI",
    "internal_error": "report it with the committer's log, which has the traceback",
    "mark_moved": "read the table's mark of the application, and stage what is behind it",
    "missing_file": "find out who has deleted or never written the file; if it is there now, "
    "`committerd dead replay OFFSET --apply`",
    "operation_not_allowed": "add the operation to `commit.allowed_operations` if producers may use it, or to this "
    "producer in the file of `commit.producers_file`; then "
    "`committerd dead replay OFFSET --apply`",
    "read_version_lost": "open the table again: it was put back to an older state since the work was read",
    "record_too_large": "stage the transaction as a file: headers `transaction-file` and `transaction-sha256`",
    "schema_differs": "open the table, write the data again for its present schema, and stage that",
    "table_exists": "open the table and stage an Append, or an Overwrite with the latest read version",
    "table_recreated": "open the table again: the version that was read is of a table that was dropped",
    "version_cleaned_up": "look in the table whether the data is there",
    "wrong_dataset": "stage to the topic of that table, or add the other name of this table to `dataset.aliases`",
}
"""What to do about one reason, where there is more to say than of its status."""


def next_steps(status: Status, reason: str) -> list[str]:
    """What to do about an outcome, as plain sentences: of the reason, if there is more to say, and of the status."""
    return [plain_text(text) for text in (REASONS.get(reason, ""), STATUSES[status].todo) if text]


def plain_text(markdown: str) -> str:
    """The text without links."""
    return _LINK.sub(r"\1", markdown)


def status_table() -> str:
    """The table of statuses, in Markdown."""
    rows = [f"| `{status}` | {advice.means} | {advice.todo} |" for status, advice in STATUSES.items()]
    return "\n".join(["| status | means | what to do |", "|---|---|---|", *rows])


def reason_table() -> str:
    """The table of reasons, in Markdown."""
    rows = [f"| `{reason}` | {todo} |" for reason, todo in sorted(REASONS.items())]
    return "\n".join(["| reason | what to do |", "|---|---|", *rows])
