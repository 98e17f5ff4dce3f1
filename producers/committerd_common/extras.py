"""Says which extra to install where a package of it is missing."""

from __future__ import annotations

import json
from importlib import metadata
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit


def missing(*modules: str, of: str, extra: str, distribution: str = "committerd-client") -> ModuleNotFoundError | None:
    """The error if one of the top-level modules is not installed. `of`: the package that needs them."""
    for name in modules:
        if find_spec(name) is None:
            install = install_line(extra, distribution=distribution)
            return ModuleNotFoundError(f"{of} needs {name}, which is not installed: {install}", name=name)
    return None


def install_line(extra: str, *, distribution: str = "committerd-client") -> str:
    """The command that installs an extra: of the folder from which the distribution was installed, or by its name."""
    try:
        said = metadata.distribution(distribution).read_text("direct_url.json")  # PEP 610
    except metadata.PackageNotFoundError:
        said = None
    origin = json.loads(said or "{}")
    folder = unquote(urlsplit(origin["url"]).path) if "dir_info" in origin else distribution
    return f"pip install '{folder}[{extra}]'"
