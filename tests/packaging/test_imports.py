"""The packages that each package of the producers may import: these, and no others."""

from __future__ import annotations

import sys

import grimp
import pytest

ALLOWED = {
    "committerd_common": {"exceptiongroup", "google", "numpy", "pyarrow", "pyroaring", "typing_extensions"},
    "committerd_login": {"kafka"},
    "committerd_client": {
        "committerd_common",
        "committerd_login",
        "anyio",
        "kafka",
        "lance",
        "numpy",
        "opentelemetry",
        "pyarrow",
        "pyroaring",
    },
    "committerd_batch": {"committerd_client", "committerd_common", "lance", "pyarrow"},
    "committerd_daft": {"committerd_batch", "committerd_client", "committerd_common", "daft", "pyarrow"},
    "committerd_ingest": {
        "committerd_batch",
        "committerd_client",
        "committerd_common",
        "committerd_login",
        "aiohttp",
        "fastavro",
        "google",
        "kafka",
        "lance",
        "pyarrow",
        "pytest",
    },
    "committerd_ray": {"committerd_batch", "committerd_client", "committerd_common", "pyarrow", "ray"},
    "committerd_spark": {"committerd_batch", "committerd_client", "committerd_common", "lance", "pyarrow", "pyspark"},
}
"""Besides itself and the standard library. Some come with extras: numpy, pyroaring, pylance (lance), the engines."""


@pytest.mark.parametrize("package", ALLOWED)
def test_nothing_is_imported_that_is_not_on_the_list(package: str) -> None:
    graph = grimp.build_graph(package, include_external_packages=True, cache_dir=None)
    importing: dict[str, set[str]] = {}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            importing.setdefault(imported.split(".")[0], set()).add(module)
    of_others = {name: modules for name, modules in importing.items() if name != package}
    foreign = {name: modules for name, modules in of_others.items() if name not in sys.stdlib_module_names}
    assert foreign.keys() == ALLOWED[package], {name: foreign.get(name) for name in foreign.keys() ^ ALLOWED[package]}
