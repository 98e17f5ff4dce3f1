"""Names of Python 3.11 and newer that Python 3.10 lacks."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from builtins import ExceptionGroup
    from datetime import UTC
    from enum import StrEnum
    from typing import NotRequired, Required, Self, Unpack
else:
    from datetime import timezone
    from enum import Enum

    from exceptiongroup import ExceptionGroup
    from typing_extensions import NotRequired, Required, Self, Unpack

    UTC = timezone.utc

    class StrEnum(str, Enum):
        """Each member is a string equal to its value, and formats as that value."""

        __str__ = str.__str__


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, which its traceback shows (from Python 3.11 on)."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.__notes__ = [*getattr(error, "__notes__", ()), note]


__all__ = ["UTC", "ExceptionGroup", "NotRequired", "Required", "Self", "StrEnum", "Unpack", "add_note"]
