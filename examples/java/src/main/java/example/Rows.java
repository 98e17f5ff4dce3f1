package example;

import java.util.Arrays;
import java.util.List;
import java.util.UUID;
import lance.table.Table.DataFile;
import lance.table.Table.DataFragment;
import lance.table.TransactionOuterClass.Transaction;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.lance.Dataset;
import org.lance.Fragment;
import org.lance.FragmentMetadata;
import org.lance.WriteParams;

/**
 * Rows to append: Lance's library writes their data files, and commits nothing.
 *
 * <p>Lance's Java {@code Transaction} can only be committed, and not be had as bytes, so the message is built here.
 */
record Rows(String uri, long firstId, int count) {
  /** Writes data files, and returns the Append that would put them into the table. */
  Transaction write() {
    try (BufferAllocator allocator = new RootAllocator();
        Dataset table = Dataset.open(uri, allocator);
        VectorSchemaRoot rows = VectorSchemaRoot.create(schema(), allocator)) {
      BigIntVector ids = (BigIntVector) rows.getVector("id");
      ids.allocateNew(count);
      for (int i = 0; i < count; i++) {
        ids.set(i, firstId + i);
      }
      rows.setRowCount(count);
      List<FragmentMetadata> fragments =
          Fragment.write()
              .datasetUri(uri)
              .allocator(allocator)
              .data(rows)
              .mode(WriteParams.WriteMode.APPEND)
              // Without it, files have the library's default version, and the committer refuses them (file_version).
              .dataStorageVersion(table.getLanceFileFormatVersion())
              .execute();
      Transaction.Append append =
          Transaction.Append.newBuilder().addAllFragments(fragments.stream().map(Rows::message).toList()).build();
      return Transaction.newBuilder()
          .setReadVersion(table.version())
          .setUuid(UUID.randomUUID().toString())
          .setAppend(append)
          .build();
    }
  }

  private static Schema schema() {
    return new Schema(List.of(Field.nullable("id", new ArrowType.Int(64, true))));
  }

  /** A new fragment as a message. Its id is 0: the committer chooses the ids of appended fragments. */
  private static DataFragment message(FragmentMetadata fragment) {
    return DataFragment.newBuilder()
        .setPhysicalRows(fragment.getPhysicalRows())
        .addAllFiles(fragment.getFiles().stream().map(Rows::message).toList())
        .build();
  }

  private static DataFile message(org.lance.fragment.DataFile file) {
    DataFile.Builder made =
        DataFile.newBuilder()
            .setPath(file.getPath())
            .addAllFields(Arrays.stream(file.getFields()).boxed().toList())
            .addAllColumnIndices(Arrays.stream(file.getColumnIndices()).boxed().toList())
            .setFileMajorVersion(file.getFileMajorVersion())
            .setFileMinorVersion(file.getFileMinorVersion());
    if (file.getFileSizeBytes() != null) {
      made.setFileSizeBytes(file.getFileSizeBytes());
    }
    return made.build();
  }
}
