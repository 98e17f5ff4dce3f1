"""The parts of other versions' footprints that a rebase of ours needs.

A footprint may take 10 MB, and ours may be compared with a hundred thousand versions. So a footprint is dropped once it
was compared, except for the part that the rebase looks at: where Rewrites moved what ours is about, and what has
happened to that since. These parts are bounded too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap, FrozenBitMap

from committerd.lance.conflicts.footprint import Footprint, size_of
from committerd.lance.format.bounds import FRAGMENT_ID_MAX
from committerd.lance.format.kind import Kind
from committerd.lance.versions.fragments import FileIdentity
from committerd.lance.versions.moves import MovedGroup

REBASE_BYTES_MAX = 64 * 1024 * 1024
"""The most memory that is kept for one transaction, in bytes: about 500,000 moved fragments without row ids."""


@dataclass(slots=True)
class RebaseFootprints:
    """The parts of footprints that a rebase needs, in ascending order of versions."""

    bytes_max: int = REBASE_BYTES_MAX
    parts: list[tuple[int, Footprint]] = field(default_factory=list)
    """By version: the part of its footprint."""
    bytes: int = 0
    """The estimated memory of the parts."""
    is_too_much: bool = False
    """Whether the parts would exceed the bound. Then no part is kept, and ours can't be rebased."""

    def add(self, version: int, theirs: Footprint) -> None:
        """Keep what matters of one more version."""
        if self.is_too_much:
            return
        part = self.part(theirs)
        if part is None:
            return
        self.bytes += size_of(part)
        self.parts.append((version, part))
        if self.bytes > self.bytes_max:
            self.is_too_much = True
            self.drop()

    def drop(self) -> None:
        """Keep nothing: ours is refused."""
        self.parts.clear()
        self.bytes = 0

    @property
    def footprints(self) -> Sequence[Footprint]:
        return [part for _, part in self.parts]

    def part(self, theirs: Footprint) -> Footprint | None:
        """The part of a footprint that a rebase needs; None = none."""
        return None


class RowFootprints(RebaseFootprints):
    """For a Delete or Update: the Rewrites that moved its rows, and changes of columns where these rows are now."""

    __slots__ = ("_files", "_here", "_ours")

    def __init__(self, ours: Footprint, bytes_max: int = REBASE_BYTES_MAX) -> None:
        super().__init__(bytes_max)
        self._ours = ours.fragments
        self._here = set[int]()
        """New fragments of the Rewrites that were kept: rows of ours may be there."""
        self._files: dict[int, tuple[FileIdentity, ...]] = {}
        """The data files of each of them, until somebody changes them: the first change is the one that counts."""

    def part(self, theirs: Footprint) -> Footprint | None:
        if theirs.kind is Kind.REWRITE:
            groups = [
                (old, moves)
                for old, moves in zip(theirs.groups, theirs.moves, strict=True)
                if not (self._ours.isdisjoint(old) and self._here.isdisjoint(old))
            ]
            for _, moves in groups:
                self._here.update(moves.new)
                self._files |= moves.files
            return _rewrite(theirs, groups)
        if not self._files or theirs.fragments.isdisjoint(self._files):
            return None
        changed = [
            id
            for id in theirs.fragments - theirs.removed
            if id in self._files and theirs.files.get(id) != self._files[id]
        ]
        for id in changed:
            del self._files[id]
        return Footprint(kind=theirs.kind, fragments=frozenset(changed)) if changed else None


class CoverageFootprints(RebaseFootprints):
    """For a CreateIndex: what happened to the fragments that its indices cover, and to the MemWAL."""

    __slots__ = ("_covered", "_pruned")

    def __init__(self, ours: Footprint, bytes_max: int = REBASE_BYTES_MAX) -> None:
        super().__init__(bytes_max)
        self._covered = BitMap().union(*(index.fragments or FrozenBitMap() for index in ours.new_indices))
        """What the indices cover, and new fragments of Rewrites that may take its place."""
        self._pruned: dict[frozenset[int], set[int]] = {}
        """By fields: the fragments that are known to have been rewritten in place."""

    def part(self, theirs: Footprint) -> Footprint | None:
        if theirs.kind is Kind.REWRITE:
            groups = [
                (old, _without_rows(moves))
                for old, moves in zip(theirs.groups, theirs.moves, strict=True)
                if self._covers_any(old)
            ]
            self._covered.update(one for _, moves in groups for one in moves.new if one <= FRAGMENT_ID_MAX)
            if not groups and theirs.reuse_version is None:
                return None
            part = _rewrite(theirs, groups) or Footprint(kind=Kind.REWRITE)
            return replace(part, reuse_version=theirs.reuse_version)
        fields = theirs.fields_modified.union(*theirs.replaced.values())
        pruned = self._pruned_by(theirs, fields)
        if not pruned and not theirs.generations:
            return None
        return Footprint(
            kind=theirs.kind,
            files=dict.fromkeys(pruned, ()),
            fields_modified=fields,
            generations=theirs.generations,
        )

    def _pruned_by(self, theirs: Footprint, fields: frozenset[int]) -> list[int]:
        """The covered fragments in which these fields were rewritten in place, without the fragments in which they had
        been rewritten before.
        """
        if not fields:
            return []
        known = self._pruned.setdefault(fields, set())
        pruned = [id for id in theirs.replaced or theirs.files if id not in known and self._covers_any((id,))]
        known.update(pruned)
        return pruned

    def _covers_any(self, fragments: frozenset[int] | tuple[int, ...]) -> bool:
        return any(one <= FRAGMENT_ID_MAX and one in self._covered for one in fragments)


def _rewrite(theirs: Footprint, groups: Sequence[tuple[frozenset[int], MovedGroup]]) -> Footprint | None:
    """The part of a Rewrite that consists of these groups; None without any."""
    if not groups:
        return None
    return Footprint(
        kind=Kind.REWRITE,
        fragments=frozenset().union(*(old for old, _ in groups)),
        groups=tuple(old for old, _ in groups),
        moves=tuple(moves for _, moves in groups),
    )


def _without_rows(moves: MovedGroup) -> MovedGroup:
    """The group without its rows: only which fragments replaced which, and whether rows kept their ids."""
    return MovedGroup(
        old=moves.old,
        copied=(),
        new=moves.new,
        rows=(),
        files={},
        old_row_ids=dict.fromkeys(moves.old[:1], b"") if moves.old_row_ids else {},
    )
