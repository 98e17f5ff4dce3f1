"""Committers that lack one rule of row-level concurrency each: the random histories have to notice every one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from committerd.lance.conflicts.key_filter import KeyFilter, appended_keys
from committerd.lance.operations import append, create_index, update
from committerd.lance.rows.group import RowGroup
from committerd.table import judge
from committerd_common.messages import Transaction

Mutate = Callable[[pytest.MonkeyPatch], None]


def passes_every_append_that_names_keys(patch: pytest.MonkeyPatch) -> None:
    def none_of_them(transaction: Transaction) -> KeyFilter | None:
        keys = appended_keys(transaction)
        return keys and replace(keys, exact=frozenset())

    patch.setattr(append, "appended_keys", none_of_them)


def ignores_the_keys_of_appends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(append, "appended_keys", lambda transaction: None)


def commits_an_index_of_which_nothing_is_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(create_index, "what_is_left", lambda transaction, theirs, schema: "")


def believes_what_a_rewrite_says_of_its_fragments(patch: pytest.MonkeyPatch) -> None:
    def believes(*arguments: object) -> None:
        """Compares nothing."""

    patch.setattr(judge, "_require_as_read", believes)


def does_not_judge_members_against_each_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowGroup, "conflict", lambda self, change: None)


def forgets_the_rows_of_all_members_but_the_last(patch: pytest.MonkeyPatch) -> None:
    """A fragment of which several members delete rows gets the deletion file of the last one."""
    add = RowGroup.add

    def overwrites(self: RowGroup, change: object) -> None:
        for fragment_id in change.touched:  # type: ignore[attr-defined]
            self._touched.pop(fragment_id, None)
        add(self, change)  # type: ignore[arg-type]

    patch.setattr(RowGroup, "add", overwrites)


def takes_every_update_for_one_that_keeps_the_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(update, "_changed_fields", lambda transaction: frozenset())


MUTATIONS: Mapping[Mutate, int] = {
    passes_every_append_that_names_keys: 20,
    ignores_the_keys_of_appends: 0,
    commits_an_index_of_which_nothing_is_left: 5,
    believes_what_a_rewrite_says_of_its_fragments: 13,
    does_not_judge_members_against_each_other: 7,
    forgets_the_rows_of_all_members_but_the_last: 7,
    takes_every_update_for_one_that_keeps_the_keys: 6,
}
"""Each with the seed of a history that notices it, which is tried first."""
