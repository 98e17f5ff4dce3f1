"""Checks that no number of a message is out of the bounds of a version."""

from __future__ import annotations

from committerd.errors import InvalidRequest
from committerd.lance.format.bounds import numbers_out_of_bounds
from committerd.lance.format.wording import listed
from committerd_common.messages import Message


def require_in_bounds(where: str, message: Message) -> None:
    """Check that every number in a message is within its bounds. `where` names the message for people.

    Raises `InvalidRequest`, with the code of the first number that is out of bounds.
    """
    wrong = numbers_out_of_bounds(message)
    if not wrong:
        return
    raise InvalidRequest(f"{where} has numbers out of bounds: {listed(wrong, '; ')}", code=wrong[0].code)
