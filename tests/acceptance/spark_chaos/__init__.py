"""A Spark stream whose driver, committer and broker are killed. `python -m tests.acceptance.spark_chaos` runs it."""
