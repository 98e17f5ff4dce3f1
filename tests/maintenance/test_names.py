"""Which fragments of a version need a look once those of the version above it are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from committerd.lance.format import fragment_list
from committerd.maintenance.names import new_parts
from committerd_common.messages import DataFragment, Manifest


def fragments(ids: Sequence[int]) -> bytes:
    return Manifest(fragments=[DataFragment(id=one, physical_rows=1) for one in ids]).SerializeToString()


@pytest.mark.parametrize(
    ("own", "above", "new"),
    [
        ([1, 2, 3], [], [[1, 2], [3]]),
        ([1, 2, 3], [1, 2, 3], []),
        ([1, 2, 3], [1, 2, 3, 4, 5, 6], []),
        ([1, 2, 3, 4, 5], [1, 2, 9, 4, 5], [[3, 4]]),
        ([1, 2, 3, 4, 5], [1, 2], [[3, 4], [5]]),
        ([1, 2, 3], [2, 3], [[1, 2], [3]]),
        ([], [1], []),
    ],
)
def test_what_the_version_above_has_in_the_same_place_is_left_out(
    own: list[int], above: list[int], new: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragment_list, "_DECODED_AT_ONCE", 2)
    assert list(new_parts(fragments(own), fragments(above))) == [fragments(part) for part in new]
