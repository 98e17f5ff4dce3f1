"""The ledgers of all tables of a process take one bound together, of which each table has an equal part for certain.

Beyond its part a table keeps what the others do not use. What a ledger drops makes old records UNDECIDED, so no table
can take another's part.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

_PART_BYTES_MIN = 1024 * 1024
"""A table's part is at least this, 131,072 records, however many tables there are."""


class Ledgers:
    """The bound, and what each table takes of it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._sizes = WeakKeyDictionary[LedgerPart, int]()

    def part(self, bytes_max: int) -> LedgerPart:
        """The part of one more table, whose ledger takes at most so many bytes in any case."""
        return LedgerPart(self, bytes_max)

    def note(self, part: LedgerPart, size: int) -> int:
        """As `LedgerPart.bound`."""
        self._sizes[part] = size
        equal = max(_PART_BYTES_MIN, self._bytes_max // len(self._sizes))
        return max(equal, self._bytes_max - sum(self._sizes.values()) + size)

    def forget(self, part: LedgerPart) -> None:
        """As `LedgerPart.leave`."""
        self._sizes.pop(part, None)


class LedgerPart:
    """One table's part."""

    def __init__(self, ledgers: Ledgers, bytes_max: int) -> None:
        self._ledgers = ledgers
        self._bytes_max = bytes_max

    def bound(self, size: int) -> int:
        """The bound of this table's ledger now, in bytes. `size`: what the ledger takes."""
        return min(self._bytes_max, self._ledgers.note(self, size))

    def leave(self) -> None:
        """The table has no ledger any more."""
        self._ledgers.forget(self)


def lone_part(bytes_max: int) -> LedgerPart:
    """The part of a table whose ledger is by itself."""
    return Ledgers(bytes_max).part(bytes_max)
