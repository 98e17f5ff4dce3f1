"""A job that the tests kill: writes 40,000 rows with Ray or Daft. Arguments: engine, URI, servers, a folder.

If the folder has no file `worker-was-killed`, the job kills one of its own workers while it writes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

ROWS = 40_000


def main() -> None:
    engine, uri, servers, folder = sys.argv[1:]
    options: dict[str, Any] = {"bootstrap_servers": servers, "app_id": "job", "app_version": 1, "timeout": 120.0}
    print("started", flush=True)
    if engine == "daft":
        _daft(uri, options)
    else:
        _ray(uri, options, Path(folder, "worker-was-killed"))
    print("written", flush=True)


def _ray(uri: str, options: dict[str, Any], killed: Path) -> None:
    import pyarrow as pa
    import ray

    import committerd_ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)

    def slow(table: pa.Table) -> pa.Table:
        time.sleep(0.2)
        if table.column("id")[0].as_py() >= ROWS // 2:
            try:
                killed.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return table.append_column("vector", pa.array([[1.0] * 16] * table.num_rows, pa.list_(pa.float32())))

    ds = ray.data.range(ROWS, override_num_blocks=8).map_batches(slow, batch_format="pyarrow", batch_size=2_500)
    committerd_ray.write(ds, uri, **options)


def _daft(uri: str, options: dict[str, Any]) -> None:
    import daft

    import committerd_daft

    df = daft.range(ROWS, partitions=8).with_column("vector", daft.lit([1.0] * 16))
    committerd_daft.write(df, uri, **options)


if __name__ == "__main__":
    main()
