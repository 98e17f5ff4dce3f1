"""A Spark stream whose driver, committer and broker are killed. `python -m scripts.spark_chaos` runs it."""
