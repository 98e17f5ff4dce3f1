"""Says which extra to install where a package of it is missing."""

from __future__ import annotations

from importlib.util import find_spec


def missing(*modules: str, of: str, extra: str) -> ModuleNotFoundError | None:
    """The error if one of the top-level modules is not installed. `of`: the package that needs them."""
    for name in modules:
        if find_spec(name) is None:
            return ModuleNotFoundError(
                f"{of} needs {name}, which is not installed: pip install 'committerd-client[{extra}]'", name=name
            )
    return None
