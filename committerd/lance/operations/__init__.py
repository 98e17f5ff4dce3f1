"""The 15 operations of Lance, one module each.

A module holds all that is particular to its operation: what it touches, what must hold of it, what it needs read, how
it is rebased, and how it makes the next version. It says so in one `Operation` (module `operation`), and `table` lists
all of them. Whether one operation may pass another stands in `lance.conflicts.grid`. What several operations share lies
in modules that are named after it: `deletions`, `rebase`, `changed_fragments` and `schema_change` here, the parts of a
version in `lance.versions`, single values in `lance.checks`.
"""

from __future__ import annotations
