"""The memory that the caches of all tables of a process share: by use, and within one bound for each kind of cache.

A process for one table has one cache of each kind, and the bound is that cache's.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Protocol


class Shrinks(Protocol):
    """A cache that can give memory back at any moment between two of its calls."""

    def shrink(self, by: int) -> int:
        """Drop this many bytes, or more, or all that can be dropped. Returns the bytes that are left."""
        ...


class Share:
    """One cache's part in a budget."""

    def __init__(self, budget: Budget, cache: Shrinks) -> None:
        self._budget = budget
        self.bytes = 0
        self.cache = weakref.ref(cache, lambda _: budget.gone.append(self))

    def fits(self, more: int) -> bool:
        """Whether this many more bytes fit within the bound, so that no cache has to give anything back."""
        return self._budget.fits(more)

    def use(self, size: int) -> None:
        """The cache was used, and takes this many bytes now. What then exceeds the bound is given back by caches."""
        self._budget.note(self, size)


class Budget:
    """The bytes that some caches take together. The cache that was used longest ago gives back first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._shares: dict[Share, None] = {}
        """In the order of their use, the one used longest ago first."""
        self.bytes = 0
        """Estimated memory of all caches, in bytes."""
        self.gone: deque[Share] = deque()
        """The shares whose caches exist no more; another thread may add to it."""

    def share(self, cache: Shrinks) -> Share:
        """A part for this cache, for as long as it exists."""
        return Share(self, cache)

    def fits(self, more: int) -> bool:
        """As `Share.fits`."""
        return self.bytes + more <= self._bytes_max

    def note(self, share: Share, size: int) -> None:
        """As `Share.use`."""
        while self.gone:
            self._set(self.gone[0], 0)
            self._shares.pop(self.gone.popleft(), None)
        self._shares.pop(share, None)
        self._shares[share] = None
        self._set(share, size)
        if self.bytes <= self._bytes_max:
            return
        for other in list(self._shares):
            cache = other.cache()
            if cache is not None and other.bytes:
                self._set(other, cache.shrink(self.bytes - self._bytes_max))
            if self.bytes <= self._bytes_max:
                return

    def _set(self, share: Share, size: int) -> None:
        self.bytes += size - share.bytes
        share.bytes = size


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The budgets of all kinds of caches."""

    footprints: Budget
    deletion_vectors: Budget
    manifests: Budget
    outcomes: Budget
    reuse: Budget
