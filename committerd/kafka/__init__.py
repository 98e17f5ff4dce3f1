"""The queue on Kafka: the only home of kafka-python."""
