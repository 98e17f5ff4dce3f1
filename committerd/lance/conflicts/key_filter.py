"""Key filters: the primary keys that a merge-insert inserted. Two inserts of one key must not both be committed.

A filter is exact (hashes of the keys), or a split block Bloom filter. It may have false positives, but never false
negatives.
"""

from __future__ import annotations

from dataclasses import dataclass

from committerd_common.messages import Transaction

# Lance: transaction.proto, BloomFilter: the defaults of unset numbers.
NUMBER_OF_ITEMS_DEFAULT = 8192
PROBABILITY_DEFAULT = 0.00057
_SAME_PROBABILITY = 2.220446049250313e-16


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilter:
    """Keys inserted by one transaction."""

    field_ids: tuple[int, ...]
    """Field ids of the key's columns, in order."""
    exact: frozenset[int] | None = None
    """Hashes of the keys; None if `bloom` holds them."""
    bloom: bytes = b""
    number_of_items: int = NUMBER_OF_ITEMS_DEFAULT
    probability: float = PROBABILITY_DEFAULT

    def may_share_a_key(self, other: KeyFilter) -> bool:
        """Whether the two may have a key in common. True also for filters that can't be compared."""
        if self.field_ids != other.field_ids:
            return True
        if self.exact is not None and other.exact is not None:
            return bool(self.exact & other.exact)
        if self.exact is not None or other.exact is not None:
            # Lance: inserted_rows.rs: an exact set is never looked up in the other's Bloom filter.
            return True
        if (
            self.number_of_items != other.number_of_items
            or abs(self.probability - other.probability) > _SAME_PROBABILITY
            or len(self.bloom) != len(other.bloom)
        ):
            return True
        return bool(int.from_bytes(self.bloom, "little") & int.from_bytes(other.bloom, "little"))


def key_filter(message: Transaction.KeyExistenceFilter) -> KeyFilter:
    """Decode a filter, with Lance's defaults for unset numbers. A message without data is an empty exact set."""
    field_ids = tuple(message.field_ids)
    if message.WhichOneof("data") != "bloom":
        return KeyFilter(field_ids=field_ids, exact=frozenset(message.exact.key_hashes))
    bloom = message.bloom
    return KeyFilter(
        field_ids=field_ids,
        bloom=bloom.bitmap,
        number_of_items=bloom.number_of_items or NUMBER_OF_ITEMS_DEFAULT,
        probability=bloom.probability or PROBABILITY_DEFAULT,
    )
