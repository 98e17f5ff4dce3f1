"""Write a Daft DataFrame into a Lance table through committerd, as one transaction.

    import committerd_daft

    uri, servers = "s3://lake/events.lance", "broker:9092"
    committerd_daft.write(df, uri, bootstrap_servers=servers, app_id="daily", app_version=20260329)

Daft's tasks write the data files, and one transaction is staged for all of them. With `app_id` and `app_version`, a job
that is run again adds its rows once.
"""

from __future__ import annotations

from committerd_common.extras import missing

if _error := missing("daft", "lance", "pyroaring", of="committerd_daft", extra="daft"):
    raise _error

from committerd_daft.sink import CommitterdSink, write

__all__ = ["CommitterdSink", "write"]
