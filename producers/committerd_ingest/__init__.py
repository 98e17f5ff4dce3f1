"""Rows from Kafka's topics into a Lance table, each record exactly once: what `committerd ingest` runs.

It holds no state. The table says how far it has each partition: the mark of an application whose name has pipeline,
cluster, topic and partition, and whose number is the offset behind the last record. A process begins at the mark, and
each transaction is committed only if the mark is still where the process has begun (header `app-after`).

`marks` decides where a partition begins, `decoding` makes rows of records, `buffering` says when they are written;
these do no I/O. `source` reads the topics, `table` reads and writes the marks, `partition` joins them for one
partition, and `pipeline` for all that the process is assigned.
"""
