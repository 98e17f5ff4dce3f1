"""The 15 operations of Lance, one module each.

A module has all that is specific to its operation: its footprint, its validation, the reads that it needs, its rebase,
and how it builds the next version. All of that is in one `Operation` record (module `operation`); `table` lists the
records. `lance.conflicts.grid` says whether an operation may be committed after another, `permissions` which operations
the operator permits.
Code that several operations share is in modules named after its subject: `deletions`, `rebase`, `changed_fragments` and
`schema_change` here, the parts of a version in `lance.versions`, single values in `lance.checks`.
"""

from __future__ import annotations
