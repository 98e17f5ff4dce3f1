"""Long lists and texts from outside, cut to what a message can show."""

from __future__ import annotations

from collections.abc import Sequence

LISTED_MAX = 10
"""The most items that a message lists."""
CHARS_MAX = 200
"""The most characters of a text from outside, such as a path, that a message quotes."""


def listed(items: Sequence[object], separator: str = ", ") -> str:
    """The first items as text, and how many more there are."""
    texts = [str(item) for item in items[:LISTED_MAX]]
    if len(items) > LISTED_MAX:
        texts.append(f"and {len(items) - LISTED_MAX} more")
    return separator.join(texts)


def quoted(text: str) -> str:
    """The beginning of a text, in quotation marks."""
    return repr(text[:CHARS_MAX])
