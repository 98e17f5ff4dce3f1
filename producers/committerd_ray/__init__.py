"""Write a Ray dataset into a Lance table through committerd, as one transaction.

    import committerd_ray

    uri, servers = "s3://lake/events.lance", "broker:9092"
    committerd_ray.write(ds, uri, bootstrap_servers=servers, app_id="daily", app_version=20260329)

Ray's tasks write the data files, and the driver stages one transaction for all of them. Files of tasks that Ray repeats
are named by nothing. With `app_id` and `app_version`, a job that is run again adds its rows once.
"""

from __future__ import annotations

from committerd_common.extras import missing

if _error := missing("ray", "lance", "pyroaring", of="committerd_ray", extra="ray"):
    raise _error

from committerd_ray.sink import CommitterdDatasink, write

__all__ = ["CommitterdDatasink", "write"]
