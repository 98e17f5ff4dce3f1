"""The parts of a version that are decoded to judge a transaction on it."""

from __future__ import annotations

import pytest

from committerd.lance.transactions.transaction import excerpt
from committerd_common.messages import Transaction
from tests.lance.samples import fragment, manifest, table, transaction

FILE = table(manifest(*(fragment(number) for number in range(5))))
NAMED = [fragment(1), fragment(7)]


@pytest.mark.parametrize(
    ("staged", "wanted"),
    [
        (transaction(append=Transaction.Append(fragments=[fragment(0)])), []),
        (transaction(delete=Transaction.Delete(updated_fragments=NAMED, deleted_fragment_ids=[3])), [1, 3]),
        (transaction(update=Transaction.Update(updated_fragments=NAMED, removed_fragment_ids=[0])), [0, 1]),
        (transaction(merge=Transaction.Merge()), [0, 1, 2, 3, 4]),
    ],
)
def test_only_what_is_asked_about(staged: Transaction, wanted: list[int]) -> None:
    found = excerpt(FILE, staged)
    assert [one.id for one in found.fragments] == wanted
    assert found.fields == FILE.outline.fields
