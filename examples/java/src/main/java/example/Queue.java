package example;

import com.google.protobuf.InvalidProtocolBufferException;
import committerd.Commit.Outcome;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The staged topic and the outcomes topic of one dataset. The committer creates both. */
final class Queue implements AutoCloseable {
  private static final String PRODUCER = "java-example";
  private static final Duration POLL = Duration.ofMillis(200);

  private final String staged;
  private final String uri;
  private final KafkaProducer<byte[], byte[]> producer;
  private final KafkaConsumer<byte[], byte[]> consumer;
  private final TopicPartition outcomes;

  /** The offset of the record that was published last; -1 = none yet. */
  private long offset = -1;

  Queue(String bootstrapServers, String dataset, String uri) {
    this.uri = uri;
    staged = dataset + ".staged";
    producer =
        new KafkaProducer<>(
            Map.of("bootstrap.servers", bootstrapServers, "acks", "all", "enable.idempotence", true),
            new ByteArraySerializer(),
            new ByteArraySerializer());
    consumer =
        new KafkaConsumer<>(
            Map.of("bootstrap.servers", bootstrapServers, "enable.auto.commit", false),
            new ByteArrayDeserializer(),
            new ByteArrayDeserializer());
    String topic = dataset + ".outcomes";
    // Always the same partition for one producer, so that a later run finds the outcome of an earlier one.
    int partition = Math.floorMod(PRODUCER.hashCode(), consumer.partitionsFor(topic).size());
    outcomes = new TopicPartition(topic, partition);
    consumer.assign(List.of(outcomes));
  }

  /** The offset of the next outcome: whatever is staged from now on has its outcome there or later. */
  long outcomesEnd() {
    return consumer.endOffsets(List.of(outcomes)).get(outcomes);
  }

  /** Stages a record, and waits until Kafka has it. Returns its offset. */
  long publish(Staged one) throws Exception {
    ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(staged, 0, bytes(one.uuid()), one.value());
    record.headers().add("dataset", bytes(uri));
    record.headers().add("producer", bytes(PRODUCER));
    record.headers().add("outcome-partition", bytes(Integer.toString(outcomes.partition())));
    if (!one.retryOf().isEmpty()) {
      record.headers().add("attempt", bytes(Integer.toString(one.attempt())));
      record.headers().add("retry-of", bytes(one.retryOf()));
    }
    String key = System.getenv("PRODUCER_KEY"); // where the committer takes signed records only
    if (key != null) {
      record.headers().add("signature", Signature.of(record, key));
    }
    offset = producer.send(record).get().offset();
    return offset;
  }

  /** The outcome of a transaction, if there is one by now. */
  Optional<Outcome> find(Staged one) throws InvalidProtocolBufferException {
    long end = outcomesEnd();
    consumer.seek(outcomes, one.outcomesFrom());
    while (consumer.position(outcomes) < end) {
      Optional<Outcome> found = next(one);
      if (found.isPresent()) {
        return found;
      }
    }
    return Optional.empty();
  }

  /** Waits for the outcome of a transaction that was just published, at this offset or later. It can be found later too. */
  Outcome await(Staged one, long outcomesFrom, Duration patience)
      throws InvalidProtocolBufferException, TimeoutException {
    consumer.seek(outcomes, outcomesFrom);
    long deadline = System.nanoTime() + patience.toNanos();
    while (System.nanoTime() < deadline) {
      Optional<Outcome> found = next(one);
      if (found.isPresent()) {
        return found.get();
      }
    }
    throw new TimeoutException(one.uuid() + " has no outcome yet; run this again to wait for it");
  }

  private Optional<Outcome> next(Staged one) throws InvalidProtocolBufferException {
    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
      Outcome outcome = Outcome.parseFrom(record.value());
      // A record that the committer could not decode has an outcome without uuid: its offset says which one it was.
      boolean undecoded = outcome.getUuid().isEmpty() && outcome.getOffset() == offset;
      if (undecoded || outcome.getUuid().equals(one.uuid())) {
        return Optional.of(outcome);
      }
    }
    return Optional.empty();
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  @Override
  public void close() {
    producer.close();
    consumer.close();
  }
}
