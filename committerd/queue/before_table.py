"""Refusals that are published while there is no table, so that their producers don't wait for one in vain.

Without a table no version can hold an outcome. But some refusals follow from the record alone, whatever table comes: it
can't be decoded, it names another table, its schema is one that no reader can open. They are published at once, and are
the only outcomes that the table does not have. What is published must stay true, also when the settings change or a
standby takes over. So each Start reads them back from the outcomes topic, and the version that passes such a record
holds the very same refusal. None is acknowledged before that, and its dead letter comes with that version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import refusal_of_outcome, refused
from committerd.queue.position import Position
from committerd_common.messages import Outcome, Refusal

REASONS = frozenset(
    {
        "app_id_not_allowed",
        "create_options",
        "header_invalid",
        "metadata_too_large",
        "no_operation",
        "number_out_of_bounds",
        "path_invalid",
        "path_outside",
        "producer_unknown",
        "record_empty",
        "record_too_large",
        "record_undecodable",
        "reserved_key",
        "schema",
        "signature_invalid",
        "signature_missing",
        "text_invalid",
        "unknown_fields",
        "unknown_operation",
        "uuid_invalid",
        "wrong_dataset",
    }
)
"""What follows from the record and the settings alone: no file, no other record and no clock is looked at."""
REFUSALS_MAX = 100
"""Most refusals that are published before there is a table: the end of the outcomes topic that Start reads has all of
them. Further records wait for the table.
"""


def may_be_published(decision: Refused, *, known: Mapping[int, Refusal]) -> bool:
    """Whether a refusal may be published although there is no table. `known`: those that have been, by offset."""
    return decision.reason in REASONS and len(known) < REFUSALS_MAX


def outcome_before_table(refusal: Refusal, position: Position) -> Outcome:
    """The outcome of a record that is refused while there is no table. `position`: where the queue begins."""
    outcome = refused(refusal, position)
    outcome.before_table = True
    return outcome


def refused_before_table(outcomes: Iterable[Outcome], position: Position) -> dict[int, Refusal]:
    """The refusals that were published before there was a table, and that no version holds yet, by offset.

    `outcomes`: the end of the outcomes topic.
    """
    return {
        one.offset: refusal_of_outcome(one)
        for one in outcomes
        if one.before_table
        and one.topic_id == position.topic_id
        and one.era >= position.era
        and not position.passes(one.offset)
    }
