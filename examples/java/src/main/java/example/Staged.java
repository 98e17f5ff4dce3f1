package example;

/**
 * A transaction that is staged, or about to be.
 *
 * @param uuid the transaction's own, in lower case
 * @param value the bytes of the {@code lance.table.Transaction}
 * @param outcomesFrom the outcome has this offset or a later one, in the partition that this program reads
 * @param attempt 1, or more for an execution after RETRYABLE
 * @param retryOf the uuid that was refused; empty for the first attempt
 */
record Staged(String uuid, byte[] value, long outcomesFrom, int attempt, String retryOf) {}
