package example;

import java.io.IOException;
import java.io.StringReader;
import java.io.StringWriter;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Base64;
import java.util.Optional;
import java.util.Properties;

/** A file that remembers, over a crash, what was staged and has no known outcome yet. */
final class Journal {
  private final Path file;

  Journal(Path file) {
    this.file = file.toAbsolutePath();
  }

  /** What an earlier run left. */
  Optional<Staged> read() throws IOException {
    if (!Files.exists(file)) {
      return Optional.empty();
    }
    Properties fields = new Properties();
    fields.load(new StringReader(Files.readString(file)));
    return Optional.of(
        new Staged(
            fields.getProperty("uuid"),
            Base64.getDecoder().decode(fields.getProperty("value")),
            Long.parseLong(fields.getProperty("outcomes-from")),
            Integer.parseInt(fields.getProperty("attempt")),
            fields.getProperty("retry-of")));
  }

  /** Must be called before the record is published: afterwards would be too late. */
  void write(Staged staged) throws IOException {
    Properties fields = new Properties();
    fields.setProperty("uuid", staged.uuid());
    fields.setProperty("value", Base64.getEncoder().encodeToString(staged.value()));
    fields.setProperty("outcomes-from", Long.toString(staged.outcomesFrom()));
    fields.setProperty("attempt", Integer.toString(staged.attempt()));
    fields.setProperty("retry-of", staged.retryOf());
    StringWriter text = new StringWriter();
    fields.store(text, null);
    Path half = file.resolveSibling(file.getFileName() + ".new");
    try (FileChannel channel =
        FileChannel.open(
            half, StandardOpenOption.CREATE, StandardOpenOption.TRUNCATE_EXISTING, StandardOpenOption.WRITE)) {
      channel.write(ByteBuffer.wrap(text.toString().getBytes(StandardCharsets.UTF_8)));
      channel.force(true);
    }
    Files.move(half, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
  }

  /** The outcome is known. */
  void clear() throws IOException {
    Files.deleteIfExists(file);
  }
}
