package example;

import committerd.Commit.Outcome;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Optional;
import lance.table.TransactionOuterClass.Transaction;

/**
 * Appends rows to a Lance table through its queue, exactly once, however often it is killed and started again.
 *
 * <pre>example.Append BOOTSTRAP_SERVERS DATASET URI JOURNAL FIRST_ID ROWS</pre>
 *
 * The table must exist and have one column, {@code id}, of 64-bit integers. The rows get the ids from FIRST_ID on. JOURNAL
 * is a file of this program: it holds what was staged and has no known outcome yet.
 */
public final class Append {
  private static final Duration PATIENCE = Duration.ofSeconds(60);
  private static final int ATTEMPTS_MAX = 5;

  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 6) {
      System.err.println("usage: example.Append BOOTSTRAP_SERVERS DATASET URI JOURNAL FIRST_ID ROWS");
      System.exit(2);
    }
    String uri = arguments[2];
    Journal journal = new Journal(Path.of(arguments[3]));
    Rows rows = new Rows(uri, Long.parseLong(arguments[4]), Integer.parseInt(arguments[5]));
    try (Queue queue = new Queue(arguments[0], arguments[1], uri)) {
      System.exit(run(queue, journal, rows));
    }
  }

  /** Stages the rows, or finds out what became of those that an earlier run staged. Returns the exit code. */
  private static int run(Queue queue, Journal journal, Rows rows) throws Exception {
    Optional<Staged> left = journal.read();
    Staged staged;
    Outcome outcome;
    if (left.isPresent()) {
      staged = left.get();
      System.out.println("an earlier run staged " + staged.uuid());
      Optional<Outcome> found = queue.find(staged);
      // Not found: it has none yet, or the earlier run ended before Kafka had the record. Staging the same bytes
      // again is safe, because a uuid is committed once.
      outcome = found.isPresent() ? found.get() : stage(queue, staged);
    } else {
      staged = first(queue, rows);
      journal.write(staged);
      outcome = stage(queue, staged);
    }
    while (true) {
      String said = outcome.getStatus() + " " + outcome.getReason() + " " + outcome.getMessage();
      switch (outcome.getStatus()) {
        case COMMITTED, DUPLICATE -> {
          journal.clear();
          System.out.println(outcome.getStatus() + " in version " + outcome.getVersion());
          return 0;
        }
        case RETRYABLE -> {
          if (staged.attempt() == ATTEMPTS_MAX) {
            journal.clear();
            System.err.println("given up after " + ATTEMPTS_MAX + " attempts: " + said);
            return 1;
          }
          System.out.println("done again on the latest version: " + said);
          staged = again(queue, rows, staged);
          journal.write(staged);
          outcome = stage(queue, staged);
        }
        case UNDECIDED -> {
          // The journal stays: whether these rows are in the table is for a person to find out.
          System.err.println("look into the table before you stage these rows again: " + said);
          return 3;
        }
        default -> {
          journal.clear();
          System.err.println("not committed, and doing it again can't help: " + said);
          return 1;
        }
      }
    }
  }

  private static Outcome stage(Queue queue, Staged staged) throws Exception {
    long outcomesFrom = queue.outcomesEnd();
    long offset = queue.publish(staged);
    System.out.println("staged " + staged.uuid() + " at offset " + offset);
    return queue.await(staged, outcomesFrom, PATIENCE);
  }

  private static Staged first(Queue queue, Rows rows) throws Exception {
    Transaction transaction = rows.write();
    return new Staged(transaction.getUuid(), transaction.toByteArray(), queue.outcomesEnd(), 1, "");
  }

  private static Staged again(Queue queue, Rows rows, Staged refused) throws Exception {
    Transaction transaction = rows.write();
    return new Staged(
        transaction.getUuid(),
        transaction.toByteArray(),
        queue.outcomesEnd(),
        refused.attempt() + 1,
        refused.uuid());
  }

  private Append() {}
}
