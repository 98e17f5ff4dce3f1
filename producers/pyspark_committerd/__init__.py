"""Registers the data source `committerd` with Spark 4, which looks for packages whose names begin with `pyspark_`.

Spark imports it in each session that looks up a data source, so an environment without the extra `spark` must not fail.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    from committerd_spark.datasource import CommitterdDataSource as DefaultSource

    __all__ = ["DefaultSource"]
