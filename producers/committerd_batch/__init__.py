"""What the writers for Spark, Ray and Daft share: many tasks write the files of a batch, one transaction commits it.

The driver makes a `Plan` against one version of the table. Each task gets the plan's `WriteTask`, writes its rows as
data files, and returns a `TaskResult`. The driver then stages one transaction for all of them. A task needs pylance and
this package, and neither Kafka nor the driver.

Use the packages `committerd_spark`, `committerd_ray` and `committerd_daft`; this one is internal, and may change.
"""
