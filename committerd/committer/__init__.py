"""Commits the records of one queue to one table: intake, Start, forming versions, putting them, publishing outcomes.

`committer` has the loop; read it first.
"""

from __future__ import annotations

from committerd.committer.committer import Committer, Components
from committerd.committer.state import Intervals, State

__all__ = ["Committer", "Components", "Intervals", "State"]
