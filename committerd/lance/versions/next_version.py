"""A version that was built and is not yet on the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from committerd.lance.format.fragment_list import NO_FRAGMENTS, FragmentList, pack
from committerd_common.messages import IndexMetadata, Manifest


@dataclass(frozen=True, kw_only=True)
class NextVersion:
    """What a build made, which nobody changes."""

    manifest: Manifest
    """`fragments` has those that are new, and those that were looked at."""
    indices: Sequence[IndexMetadata]
    touched: frozenset[int] | None
    """Ids of the fragments that are new or not as they were; None = all in `manifest` may be."""
    kept: FragmentList = NO_FRAGMENTS
    """The other fragments, ascending: as they are in the current version."""

    @cached_property
    def packed(self) -> tuple[Manifest, FragmentList]:
        """`manifest` as its outline and its own fragments."""
        return pack(self.manifest)
