"""The 15 operations of Lance, one module each.

A module holds all that is particular to its operation: what it touches, what must hold of it, what it needs read, how
it is rebased, and how it makes the next version. It says so in one `Operation` (module `operation`), and `table` lists
all of them. Whether one operation may pass another stands in the grid of `rules.conflicts`. What several operations
share lies in the modules of `rules` that are named after it: deletions, fragments, indices, row ids, schema.
"""

from __future__ import annotations
