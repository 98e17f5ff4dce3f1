"""The transaction properties by which a producer says what committerd can't see in a transaction.

All other properties that begin with `committerd.` are the committer's own.
"""

from __future__ import annotations

ROWS = "committerd.rows"
"""On a Rewrite: how rows moved."""
IN_ORDER = "in-order"
"""Value of `ROWS`: in each group, the n-th row that was copied from the old fragments is the n-th of the new ones."""
KEYS = "committerd.keys"
"""On an Append: the keys of its rows, as a `KeyExistenceFilter` in base64."""
KEY_HASH = "committerd.key-hash"
"""On an Append with `KEYS`, and on an Update with exact `inserted_rows`: the hash of a key in its filter."""
BLAKE2B_8 = "blake2b-8"
"""Value of `KEY_HASH`: the hash that the wire contract defines. Filters of any other one can't be compared."""
MERGE = "committerd.merge"
"""On an Update: what its merge depends on."""
BY_KEY = "by-key"
"""Value of `MERGE`: it depends on no rows of the table but those with the keys of its source."""
CHANGES = "committerd.changes"
"""On an Update that inserts no row: the ids of the fields whose values it changes, separated by commas."""
CHANGES_MAX = 10_000
"""Maximum number of fields that `CHANGES` may name."""
EMPTIED = "committerd.emptied"
"""Set by the committer on a Rewrite: ids of old fragments, separated by commas, that lost all rows before it."""
OF_ANY_COMMIT = frozenset({ROWS, KEYS, KEY_HASH, MERGE, CHANGES, EMPTIED})
"""The properties that a version may have whether or not it was committed from a queue."""
