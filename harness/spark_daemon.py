"""PySpark's daemon, with the packages loaded that the tasks of the tests need (`spark.python.daemon.module`).

A worker is a fork of the daemon. With PySpark's own daemon, each worker loads these packages by itself, which takes
more processor time than most tasks of the tests. PySpark does not load them before it forks, because some start
threads; nothing uses these threads before the fork. PySpark's own daemon still runs in the tests whose executors are
processes of their own, in those of the wheels, and in `make spark-versions`.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings

from pyspark.daemon import manager

_LOADED = ("pyspark.worker", "pandas", "pyarrow", "lance", "committerd_spark")


def _load() -> None:
    for name in _LOADED:
        with contextlib.suppress(ImportError):  # the worker reports it when it needs the package
            importlib.import_module(name)


if __name__ == "__main__":
    _load()
    warnings.filterwarnings("ignore", message="lance is not fork-safe")  # nothing has used it yet
    manager()
