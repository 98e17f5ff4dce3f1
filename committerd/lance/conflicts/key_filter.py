"""Key filters: the primary keys that a merge-insert inserted. Two inserts of one key must not both be committed.

A filter is exact (hashes of the keys), or a split block Bloom filter. It may have false positives, but never false
negatives.

The message does not say how keys are hashed. pylance makes only Bloom filters, and hashes keys in one way. Exact
filters come from other writers, which name the hash in the property `committerd.key-hash`. An exact filter is compared
only if it is made with the hash of the wire contract; any other exact filter may have any key.
"""

from __future__ import annotations

import re
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from committerd_common.malformed import MalformedError
from committerd_common.messages import DecodeError, Transaction
from committerd_common.own_properties import BLAKE2B_8, BY_KEY, CHANGES, CHANGES_MAX, KEY_HASH, KEYS, MERGE

# Lance: transaction.proto, BloomFilter: the defaults of unset numbers.
NUMBER_OF_ITEMS_DEFAULT = 8192
PROBABILITY_DEFAULT = 0.00057
_SAME_PROBABILITY = 2.220446049250313e-16

KEYS_MAX = 100_000
"""Maximum number of hashes in an exact filter, also in that of several transactions: about 1 MB in a version and in
memory. A filter of more hashes counts as a filter that may have any key.
"""
_SEARCH_COSTS = 16
"""To search a hash among many takes as long as to look up this many hashes in a frozenset."""
_ANY_KEY = b"\xff" * 32768
"""A Bloom filter of the size of pylance's that has any key. Lance: inserted_rows.rs."""

_FIELD_IDS = re.compile(r"(?:[0-9]{1,9}(?:,[0-9]{1,9})*)?", re.ASCII)


class KeyHashes(Set[int]):
    """Hashes of keys, in 8 bytes each; a frozenset takes 100 bytes for each. A hash that occurs twice counts twice.

    The first search sorts them. The first look-up of other hashes makes a frozenset, which is kept, because ours are
    compared with many of theirs.
    """

    __slots__ = ("_hashes", "_is_sorted", "_to_look_up")

    def __init__(self, hashes: Iterable[int] = ()) -> None:
        self._hashes = array("Q", hashes)
        self._is_sorted = False
        self._to_look_up: frozenset[int] | None = None

    def __len__(self) -> int:
        return len(self._hashes)

    def __iter__(self) -> Iterator[int]:
        return iter(self._hashes)

    def __contains__(self, one: object) -> bool:
        if not isinstance(one, int):
            return False
        if not self._is_sorted:
            self._hashes = array("Q", sorted(self._hashes))
            self._is_sorted = True
        at = bisect_left(self._hashes, one)
        return at < len(self._hashes) and self._hashes[at] == one

    def isdisjoint(self, other: Iterable[int]) -> bool:
        """Whether none of the other hashes is among these. If these are few, they are searched among the others."""
        if isinstance(other, KeyHashes) and len(self) * _SEARCH_COSTS < len(other):
            return not any(one in other for one in self)
        if self._to_look_up is None:
            self._to_look_up = frozenset(self._hashes)
        return self._to_look_up.isdisjoint(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilter:
    """Keys inserted by one transaction."""

    field_ids: tuple[int, ...]
    """Field ids of the key's columns, in order."""
    exact: Set[int] | None = None
    """Hashes of the keys; None if `bloom` holds them."""
    bloom: bytes = b""
    number_of_items: int = NUMBER_OF_ITEMS_DEFAULT
    probability: float = PROBABILITY_DEFAULT

    def may_share_a_key(self, other: KeyFilter) -> bool:
        """Whether the two may have a key in common. True also for filters that can't be compared."""
        if self.field_ids != other.field_ids:
            return True
        if self.exact is not None and other.exact is not None:
            return not self.exact.isdisjoint(other.exact)
        if self.exact is not None or other.exact is not None:
            # Lance: inserted_rows.rs: an exact set is never looked up in the other's Bloom filter.
            return True
        if not self._is_sized_like(other):
            return True
        return bool(int.from_bytes(self.bloom, "little") & int.from_bytes(other.bloom, "little"))

    def is_like(self, other: KeyFilter) -> bool:
        """Whether one filter can hold the keys of both, so that comparing it is as good as comparing each."""
        if self.field_ids != other.field_ids or (self.exact is None) != (other.exact is None):
            return False
        return self.exact is not None or self._is_sized_like(other)

    def _is_sized_like(self, other: KeyFilter) -> bool:
        """Whether the two Bloom filters have the same parameters."""
        return (
            self.number_of_items == other.number_of_items
            and abs(self.probability - other.probability) <= _SAME_PROBABILITY
            and len(self.bloom) == len(other.bloom)
        )


@dataclass(slots=True)
class KeyUnion:
    """The keys of several transactions, whose filters are alike (`KeyFilter.is_like`).

    Exact filters stay exact: comparing an exact filter with a Bloom filter leads to a retry, and must do so for the
    union too.
    """

    like: KeyFilter
    """A filter like all that are added."""
    _exact: set[int] = field(default_factory=set)
    _bloom: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether `message` is an exact filter. Then it is of the hash that is compared (`BLAKE2B_8`)."""
        return self.like.exact is not None

    def takes(self, keys: KeyFilter) -> bool:
        """Whether these keys can be added: the filter is alike, and there is room for its hashes."""
        return self.like.is_like(keys) and (not self._exact or len(self._exact) + len(keys.exact or ()) <= KEYS_MAX)

    def may_have_one_of(self, keys: KeyFilter) -> bool:
        """Whether an added transaction may share a key with this filter, which must be alike."""
        if keys.exact is not None:
            return not self._exact.isdisjoint(keys.exact)
        return bool(self._bloom & int.from_bytes(keys.bloom, "little"))

    def add(self, keys: KeyFilter) -> None:
        """Add the keys of one more transaction."""
        self._exact.update(keys.exact or ())
        self._bloom |= int.from_bytes(keys.bloom, "little")

    def message(self) -> Transaction.KeyExistenceFilter:
        """The filter of all added transactions."""
        made = Transaction.KeyExistenceFilter(field_ids=self.like.field_ids)
        if self.is_exact:
            made.exact.SetInParent()
            made.exact.key_hashes.extend(sorted(self._exact))
        else:
            made.bloom.bitmap = self._bloom.to_bytes(len(self.like.bloom), "little")
            made.bloom.num_bits = 8 * len(self.like.bloom)
            made.bloom.number_of_items = self.like.number_of_items
            made.bloom.probability = self.like.probability
        return made


def appended_keys(transaction: Transaction) -> KeyFilter | None:
    """The keys of the rows that an Append brings (property `committerd.keys`); None if it does not say, or uses a hash
    that is not compared.

    Raises `MalformedError` if the property holds anything but an exact filter of at most `KEYS_MAX` keys.
    """
    text = transaction.transaction_properties.get(KEYS)
    if text is None:
        return None
    try:
        message = Transaction.KeyExistenceFilter.FromString(b64decode(text, validate=True))
    except (ValueError, DecodeError) as error:
        raise MalformedError(f"it is not a KeyExistenceFilter in base64: {error}") from error
    if not message.field_ids or message.WhichOneof("data") != "exact" or len(message.exact.key_hashes) > KEYS_MAX:
        raise MalformedError(f"it must name key columns, and be an exact filter of at most {KEYS_MAX} keys")
    return key_filter(message) if _names_hash(transaction) else None


def inserted_keys(transaction: Transaction) -> KeyFilter | None:
    """The keys that an Update may have inserted (`inserted_rows`); None if it does not say."""
    update = transaction.update
    if not update.HasField("inserted_rows"):
        return None
    if _is_exact(update.inserted_rows) and not _names_hash(transaction):
        return _any_key(update.inserted_rows)
    return key_filter(update.inserted_rows)


def is_by_key(transaction: Transaction) -> bool:
    """Whether an Update depends on no rows but the rows with the keys of its filter (`committerd.merge`), and its
    filter can be compared.
    """
    is_said = transaction.transaction_properties.get(MERGE) == BY_KEY
    return is_said and (_names_hash(transaction) or not _is_exact(transaction.update.inserted_rows))


def _is_exact(message: Transaction.KeyExistenceFilter) -> bool:
    """Whether it is an exact filter; a filter without data is an empty exact filter."""
    return message.WhichOneof("data") != "bloom"


def _names_hash(transaction: Transaction) -> bool:
    """Whether the transaction names the hash that is compared."""
    return transaction.transaction_properties.get(KEY_HASH) == BLAKE2B_8


def _any_key(message: Transaction.KeyExistenceFilter) -> KeyFilter:
    """A filter of the same columns that may have any key."""
    return KeyFilter(field_ids=tuple(message.field_ids), bloom=_ANY_KEY)


def encoded_keys(message: Transaction.KeyExistenceFilter) -> str:
    """A value of the property `committerd.keys`."""
    return b64encode(message.SerializeToString(deterministic=True)).decode()


def changed_fields(transaction: Transaction) -> frozenset[int] | None:
    """The fields whose values an Update changes, if it says so (property `committerd.changes`), and with it that it
    inserts no row; None if it does not say.

    Raises `MalformedError` if the property holds anything but at most `CHANGES_MAX` numbers.
    """
    text = transaction.transaction_properties.get(CHANGES)
    if text is None:
        return None
    if text.count(",") >= CHANGES_MAX or not _FIELD_IDS.fullmatch(text):
        raise MalformedError(f"it must be at most {CHANGES_MAX} field ids, separated by commas")
    return frozenset(map(int, filter(None, text.split(","))))


def changes_together(updates: Iterable[Transaction]) -> str | None:
    """The property `committerd.changes` of several Updates as one; None if one of them may insert a row."""
    together = set[int]()
    for one in updates:
        fields = changed_fields(one)
        if fields is None:
            return None
        together |= fields
    return encoded_changes(together) if len(together) <= CHANGES_MAX else None


def encoded_changes(fields: Iterable[int]) -> str:
    """A value of the property `committerd.changes`."""
    return ",".join(map(str, sorted(fields)))


def may_bring_a_key(
    keys: KeyFilter | None, *, is_by_key: bool, other: KeyFilter | None, changes: frozenset[int] | None
) -> bool:
    """Whether another Update may have inserted one of the keys that an Update inserts.

    `is_by_key`: whether the Update depends on no rows but the rows with its keys. `other`, `changes`: the keys that the
    other Update inserts, and the fields that it changes if it inserts no row; None = it does not say. An Update that
    inserts no row and leaves the key columns as they are brings no key.
    """
    if keys is None:
        return False
    if other is not None:
        return keys.may_share_a_key(other)
    return changes is None or not is_by_key or not changes.isdisjoint(keys.field_ids)


def key_filter(message: Transaction.KeyExistenceFilter) -> KeyFilter:
    """Decode a filter, with Lance's defaults for unset numbers. A message without data is an empty exact set.

    An exact filter must be of the hash that is compared.
    An exact filter of more than `KEYS_MAX` keys is rare, and must not take the memory of its keys.
    """
    field_ids = tuple(message.field_ids)
    if len(message.exact.key_hashes) > KEYS_MAX:
        return _any_key(message)
    if _is_exact(message):
        return KeyFilter(field_ids=field_ids, exact=KeyHashes(message.exact.key_hashes))
    bloom = message.bloom
    return KeyFilter(
        field_ids=field_ids,
        bloom=bloom.bitmap,
        number_of_items=bloom.number_of_items or NUMBER_OF_ITEMS_DEFAULT,
        probability=bloom.probability or PROBABILITY_DEFAULT,
    )
