"""Checks of arguments: a wrong one is an error that says what was given, where, and what is needed instead.

The calls make these checks before any file is written or anything is sent. What only the table can tell, such as the
names of its columns, is checked where the table is read.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, cast

from committerd_client.errors import StagingError

RESERVED_PREFIX = "committerd."
"""Keys and properties with this prefix are reserved for the committer."""
_PORT = re.compile(r"(?P<host>[^\s/:\[\]]+|\[[0-9A-Fa-f:.%]+\])(?::(?P<port>[0-9]{1,5}))?|[0-9A-Fa-f:]*::[0-9A-Fa-f:]*")
_PORT_MAX = 65_535


def kind_of(given: Any) -> str:
    """What was given, for messages."""
    return "None" if given is None else type(given).__name__


def server_list(given: str | Sequence[str]) -> list[str]:
    """The addresses of Kafka's brokers. Raises `TypeError` and `ValueError` for anything else."""
    needed = "bootstrap_servers takes Kafka's addresses, such as 'broker1:9092,broker2:9092' or a list of them"
    if not isinstance(given, str) and (
        not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given)
    ):
        raise TypeError(f"{needed}, not {given!r}")
    servers = [one.strip() for one in (given.split(",") if isinstance(given, str) else given)]
    servers = [one for one in servers if one]
    if not servers:
        raise ValueError(f"{needed}, and none was given")
    for server in servers:
        found = _PORT.fullmatch(server.rpartition("://")[2])
        if found is None or int(found["port"] or 1) not in range(1, _PORT_MAX + 1):
            raise ValueError(f"{needed}; {server!r} is not an address (host:port)")
    return servers


def text(given: Any, where: str) -> str:
    """A string that is not empty. Raises `TypeError`, `ValueError`."""
    if not isinstance(given, str):
        raise TypeError(f"{where} takes a str, not {kind_of(given)}")
    if not given.strip():
        raise ValueError(f"{where} is empty")
    return given


def texts(given: Mapping[str, str] | None, where: str) -> dict[str, str]:
    """A map of strings; None is an empty one. Raises `TypeError`."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"{where} takes a dict of strings, such as {{'name': 'text'}}, not {kind_of(given)}")
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"{where} takes a dict of strings, and has {key!r}: {value!r}")
    return dict(given)


def properties(given: Mapping[str, str] | None) -> dict[str, str]:
    """Properties of a transaction. Raises `TypeError`, and `StagingError` for those of the committer."""
    found = texts(given, "properties")
    for key in found:
        if key.startswith(RESERVED_PREFIX):
            raise StagingError(
                f"property {key!r}: names that begin with {RESERVED_PREFIX!r} are the committer's",
                code="reserved_property",
            )
    return found


def names(given: str | Iterable[str], where: str) -> list[str]:
    """One name or several. Raises `TypeError`."""
    if isinstance(given, str):
        return [given]
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, bytes) else None
    if found is None or not all(isinstance(one, str) for one in found):
        raise TypeError(f"{where} takes a name or a list of names, not {given!r}")
    return found


def predicate(given: Any, where: str) -> str:
    """An SQL predicate. Raises `TypeError`, and `ValueError` for an empty one, which could mean all rows or none."""
    if not isinstance(given, str):
        raise TypeError(f"{where} takes an SQL predicate as a string, such as 'id = 3', not {kind_of(given)}")
    if not given.strip():
        raise ValueError(f"the predicate of {where} is empty: 'true' means all rows")
    return given


def seconds(given: Any, where: str) -> float | None:
    """A number of seconds; None = no limit. Raises `TypeError`, and `ValueError` for negative numbers."""
    if given is None:
        return None
    if not isinstance(given, Real) or isinstance(given, bool):
        raise TypeError(f"{where} takes a number of seconds, or None for no limit, not {given!r}")
    number: Any = given
    if math.isnan(number) or number < 0:
        raise ValueError(f"{where}={given!r}: seconds can't be negative; None means no limit")
    return cast("float", number)


def attempts(given: Any) -> int:
    """The maximum number of times that work is executed. Raises `TypeError`, `ValueError`."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"attempts takes a whole number, not {given!r}")
    if given < 1:
        raise ValueError(f"attempts={given}: the first execution counts, so at least 1 is needed")
    return given


def count(given: Any, where: str) -> int:
    """A number that is at least 1. Raises `TypeError`, `ValueError`."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{where} takes a whole number, not {given!r}")
    if given < 1:
        raise ValueError(f"{where}={given}: at least 1 is needed")
    return given


def plain_function(given: Callable[..., Any] | None, *, coroutines: bool) -> None:
    """Refuse a `reexecute` that can't be called. `coroutines`: whether it may be a coroutine function."""
    if given is None:
        return
    if not callable(given):
        raise TypeError(
            f"reexecute takes a function that does the work again and returns it, not {kind_of(given)}: as in "
            "reexecute=lambda again: staging.delete(lance.dataset(uri), 'id = 3')"
        )
    if inspect.iscoroutinefunction(given) and not coroutines:
        raise TypeError("reexecute of a SyncCommitClient takes a plain function, not a coroutine function")
