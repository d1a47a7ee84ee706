import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Producers with idempotence on and off, else with the client's defaults, each into its own topic: the program behind
 * benchmarks/turns.py. A line in ("on" or "off"), a line out: how many records, and the seconds until the
 * last acknowledgement.
 */
public class TurnsClient {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        Map<String, String> topics = Map.of("off", arguments[1], "on", arguments[2]);
        int records = Integer.parseInt(arguments[3]);
        byte[][] values = new byte[64][Integer.parseInt(arguments[4])];
        Random letters = new Random(0);
        for (byte[] value : values) {
            for (int i = 0; i < value.length; i++) {
                value[i] = (byte) (letters.nextInt(26) + 65);
            }
        }
        try (KafkaProducer<byte[], byte[]> off = producer(bootstrap, false);
                KafkaProducer<byte[], byte[]> on = producer(bootstrap, true)) {
            BufferedReader turns = new BufferedReader(new InputStreamReader(System.in));
            for (String turn = turns.readLine(); turn != null; turn = turns.readLine()) {
                double seconds = send(turn.equals("on") ? on : off, topics.get(turn), records, values);
                System.out.println(records + " " + seconds);
            }
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(String bootstrap, boolean isIdempotent) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "enable.idempotence", isIdempotent);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static double send(KafkaProducer<byte[], byte[]> producer, String topic, int records, byte[][] values)
            throws Exception {
        AtomicReference<Exception> failed = new AtomicReference<>();
        long started = System.nanoTime();
        for (int i = 0; i < records; i++) {
            producer.send(new ProducerRecord<>(topic, values[i % values.length]), (metadata, error) -> {
                if (error != null) {
                    failed.compareAndSet(null, error);
                }
            });
        }
        producer.flush();
        double seconds = (System.nanoTime() - started) / 1e9;
        if (failed.get() != null) {
            throw failed.get();
        }
        return seconds;
    }
}
