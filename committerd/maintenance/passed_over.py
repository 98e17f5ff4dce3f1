"""What a cleanup passes over: single objects that it can't read, list or delete. They don't end it."""

from __future__ import annotations

from collections.abc import Callable

_NAMED_MAX = 100
"""Maximum number of objects that are named; the others are counted."""
_CHARS_MAX = 400
"""Maximum length of a key, and of a reason, as they are noted; writers choose the names of claim checks."""


class PassedOver:
    """The objects that one cleanup has passed over."""

    def __init__(self, note: Callable[[str, str], None] = lambda *_: None) -> None:
        """`note`: called once for each object that is named, with its key and the reason."""
        self._note = note
        self._keys: set[str] = set()
        self.count = 0

    @property
    def keys(self) -> list[str]:
        """The first of them, sorted."""
        return sorted(self._keys)

    def add(self, key: str, error: Exception) -> None:
        """Pass over an object."""
        if key in self._keys:
            return
        self.count += 1
        if len(self._keys) < _NAMED_MAX:
            self._keys.add(key)
            self._note(key[:_CHARS_MAX], str(error)[:_CHARS_MAX])
