"""Keep partitioned assets of Dagster in Lance tables, through their queues. A partition is replaced in one transaction.

    export COMMITTERD_SERVERS=127.0.0.1:9092 LANCE_FOLDER=/data
    dagster asset materialize -f examples/dagster_assets.py --select orders --partition 2026-11-01

Copy `LanceIOManager` into a project of your own. However often Dagster materializes a partition, after a crash, a
time-out or a backfill, the table has the rows of the last time, and no reader sees a part of them.
"""

from typing import Any

import dagster as dg
import lance
import pyarrow as pa

from committerd_client import SyncCommitClient


class LanceIOManager(dg.ConfigurableIOManager):
    """Stores an asset as the table NAME.lance. An asset with partitions names its key columns and the column with the
    partition's key in its metadata, as `key` and `partition_column`; one without partitions is replaced as a whole.
    """

    folder: str
    bootstrap_servers: str

    def handle_output(self, context: dg.OutputContext, obj: pa.Table) -> None:
        """Replace what the table has of this partition."""
        uri = self._uri(context)
        with SyncCommitClient(self.bootstrap_servers, dataset_uri=uri, producer="dagster", timeout=600) as client:
            if not context.has_partition_key:
                result = client.overwrite(obj)
            else:
                client.create(obj.schema, exist_ok=True)
                # Rows of this partition that are not among the new ones go in the same transaction.
                result = client.merge_insert(
                    obj,
                    on=context.definition_metadata["key"],
                    when_matched_update_all=True,
                    when_not_matched_insert_all=True,
                    when_not_matched_by_source_delete=self._partition(context),
                )
        context.add_output_metadata({"version": result.version, "rows": obj.num_rows})

    def load_input(self, context: dg.InputContext) -> pa.Table:
        """The rows of the partition, or all."""
        where = self._partition(context.upstream_output) if context.has_partition_key else None
        return lance.dataset(self._uri(context)).to_table(filter=where)

    def _uri(self, context: Any) -> str:
        return f"{self.folder}/{'_'.join(context.asset_key.path)}.lance"

    def _partition(self, context: Any) -> str:
        key = context.partition_key.replace("'", "''")
        return f"{context.definition_metadata['partition_column']} = '{key}'"


@dg.asset(
    partitions_def=dg.DailyPartitionsDefinition(start_date="2026-01-01"),
    metadata={"key": ["day", "number"], "partition_column": "day"},
)
def orders(context: dg.AssetExecutionContext) -> pa.Table:
    """The orders of a day."""
    day = context.partition_key
    return pa.table({"day": [day] * 3, "number": range(3)})


defs = dg.Definitions(
    assets=[orders],
    resources={
        "io_manager": LanceIOManager(
            folder=dg.EnvVar("LANCE_FOLDER"), bootstrap_servers=dg.EnvVar("COMMITTERD_SERVERS")
        )
    },
)
