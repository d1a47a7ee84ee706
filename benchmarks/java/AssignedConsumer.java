import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a topic from its start as Kafka's ConsumerPerformance does, but by assign(): no group.
 * Arguments: bootstrap, topic, partitions, records, how many of them warm up. Prints one line of JSON.
 */
public final class AssignedConsumer {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long IDLE_TIMEOUT_NS = Duration.ofSeconds(20).toNanos();

    public static void main(String[] arguments) {
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        long records = Long.parseLong(arguments[3]);
        long warmup = Long.parseLong(arguments[4]);

        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("value.deserializer", ByteArrayDeserializer.class.getName());

        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
            List<TopicPartition> all =
                IntStream.range(0, partitions).mapToObj(number -> new TopicPartition(topic, number)).toList();
            consumer.assign(all);
            consumer.seekToBeginning(all);
            long read = 0;
            long timedFrom = 0;
            long lastArrival = System.nanoTime();
            long started = lastArrival;
            while (read < records) {
                int count = consumer.poll(POLL).count();
                long now = System.nanoTime();
                if (count > 0) {
                    lastArrival = now;
                } else if (now - lastArrival > IDLE_TIMEOUT_NS) {
                    throw new IllegalStateException(read + " of " + records + " records arrived");
                }
                read += count;
                if (timedFrom == 0 && read >= warmup) {
                    timedFrom = read;
                    started = now;
                }
            }
            double seconds = (lastArrival - started) / 1e9;
            System.out.printf("{\"records\": %d, \"seconds\": %s}%n", read - timedFrom, seconds);
        }
    }
}
