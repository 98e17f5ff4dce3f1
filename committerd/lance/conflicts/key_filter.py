"""Which primary keys a merge-insert inserted: two inserts of one key must not both be committed.

The filter is exact (hashes) or a split block Bloom filter. A "perhaps" of it may be wrong, a "no" never is.
"""

from __future__ import annotations

from dataclasses import dataclass

from committerd_common.messages import Transaction

# Lance: transaction.proto, BloomFilter: what an unset number stands for.
NUMBER_OF_ITEMS_DEFAULT = 8192
PROBABILITY_DEFAULT = 0.00057
_SAME_PROBABILITY = 2.220446049250313e-16


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilter:
    """Keys inserted by one transaction."""

    field_ids: tuple[int, ...]
    """Columns of the key, in order."""
    exact: frozenset[int] | None = None
    """Hashes of the keys; None when `bloom` holds them."""
    bloom: bytes = b""
    number_of_items: int = NUMBER_OF_ITEMS_DEFAULT
    probability: float = PROBABILITY_DEFAULT

    def may_share_a_key(self, other: KeyFilter) -> bool:
        """False only when no key is in both. True also for filters that can't be compared."""
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
    """Decode, with Lance's defaults for what is not set; no data means an empty exact set."""
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
