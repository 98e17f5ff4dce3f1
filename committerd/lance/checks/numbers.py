"""Numbers of a message that no version of a table can hold."""

from __future__ import annotations

from committerd.errors import InvalidRequest
from committerd.lance.format.bounds import numbers_out_of_bounds
from committerd_common.messages import Message

_LISTED_MAX = 10


def require_in_bounds(where: str, message: Message) -> None:
    """Return when every number in a message is within its bounds. `where` names the message for people.

    Raises `InvalidRequest`; its code is that of the first number which isn't.
    """
    wrong = numbers_out_of_bounds(message)
    if not wrong:
        return
    told = "; ".join(str(one) for one in wrong[:_LISTED_MAX])
    more = f"; and {len(wrong) - _LISTED_MAX} more" if len(wrong) > _LISTED_MAX else ""
    raise InvalidRequest(f"{where} has numbers out of bounds: {told}{more}", code=wrong[0].code)
