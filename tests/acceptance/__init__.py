"""Long runs against the real parts, each with its `make` target. Tests run some of them for a short time.

brokers            the main job on several versions of Kafka
maintenance_soak   writes and reads with and without maintenance, and while processes are killed
outage             Kafka is away under load
ray_daft           the tests of the writers for Ray and Daft
spark_chaos        a Spark stream whose driver, committer and broker are killed
spark_versions     the tests of the writer for Spark on several versions of it
takeover           a standby takes over under load
turns              upserts under a stream of Appends
"""
