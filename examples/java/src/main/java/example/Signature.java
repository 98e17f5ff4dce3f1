package example;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.TreeMap;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;

/** Header {@code signature}: which producer staged a record. */
final class Signature {
  private Signature() {}

  /** The value of the header. The record has a key and all its other headers, each once and named in ASCII. */
  static byte[] of(ProducerRecord<byte[], byte[]> record, String secret) throws IOException, GeneralSecurityException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    DataOutputStream parts = new DataOutputStream(bytes);
    part(parts, "committerd.signature.v1".getBytes(StandardCharsets.UTF_8));
    part(parts, record.topic().getBytes(StandardCharsets.UTF_8));
    part(parts, MessageDigest.getInstance("SHA-256").digest(record.value()));
    parts.writeInt(1 + record.key().length);
    parts.writeByte(1);
    parts.write(record.key());
    TreeMap<String, byte[]> headers = new TreeMap<>();
    for (Header header : record.headers()) {
      headers.put(header.key(), header.value());
    }
    for (var header : headers.entrySet()) {
      part(parts, header.getKey().getBytes(StandardCharsets.UTF_8));
      part(parts, header.getValue());
    }
    Mac mac = Mac.getInstance("HmacSHA256");
    mac.init(new SecretKeySpec(secret.getBytes(StandardCharsets.UTF_8), "HmacSHA256"));
    String signed = HexFormat.of().formatHex(mac.doFinal(bytes.toByteArray()));
    return ("v1:" + signed).getBytes(StandardCharsets.UTF_8);
  }

  private static void part(DataOutputStream parts, byte[] content) throws IOException {
    parts.writeInt(content.length);
    parts.write(content);
  }
}
