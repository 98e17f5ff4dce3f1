"""The error for changes that can't be staged."""

from __future__ import annotations

from committerd_client.errors import StagingError

__all__ = ["StagingError"]
