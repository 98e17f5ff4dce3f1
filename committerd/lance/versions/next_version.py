"""A version that is built and not yet in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from committerd.lance.format.fragment_list import NO_FRAGMENTS, FragmentList, pack
from committerd.lance.versions.draft import Draft
from committerd_common.messages import IndexMetadata, Manifest


@dataclass(frozen=True, kw_only=True)
class NextVersion:
    """The result of a build. Immutable: callers must not change its messages."""

    manifest: Manifest
    """Its `fragments` are the new fragments, and the fragments that the build decoded."""
    indices: Sequence[IndexMetadata]
    touched: frozenset[int] | None
    """The ids of the fragments that are new or changed; None = all in `manifest` may be."""
    kept: FragmentList = NO_FRAGMENTS
    """The other fragments, in ascending order, unchanged from the current version."""

    @classmethod
    def of(cls, draft: Draft) -> NextVersion:
        """The version that a finished draft has become."""
        return cls(
            manifest=draft.manifest,
            indices=tuple(draft.indices),
            touched=None if draft.touched is None else frozenset(draft.touched),
            kept=draft.kept,
        )

    @cached_property
    def packed(self) -> tuple[Manifest, FragmentList]:
        """`manifest`, split into its outline and its own fragments."""
        return pack(self.manifest)
