"""Commits the records of one queue to one table: intake, Start, forming versions, putting them, publishing outcomes.

`committer` has the loop; read it first.
"""

from __future__ import annotations
