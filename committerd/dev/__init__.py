"""All that `committerd dev` starts on a laptop: a broker of its own, and where its files are.

`jars` and `java` get what Apache Kafka is made of, `kafka_node` knows how one node is configured and started, `child`
keeps a program from outliving this process. `brokers` chooses the Kafka to use, `broker` starts it, and `screen` prints
what happens. The harness of the tests runs its Kafka with the same parts.
"""

from __future__ import annotations
