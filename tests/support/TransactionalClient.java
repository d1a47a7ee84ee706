// Kafka's transactional producer and its consumer behind a pipe: one JSON command per line in, one JSON answer out.
// Compiled against two versions of the client: one that speaks KIP-890, and one that does not.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class TransactionalClient {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<String, Producer<String, String>> PRODUCERS = new HashMap<>();
    static final Map<String, List<Future<RecordMetadata>>> SENT = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("result", run(JSON.readTree(line)));
            } catch (Throwable failure) {
                Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
                answer.put("error", cause.getClass().getSimpleName());
                answer.put("message", String.valueOf(cause.getMessage()));
            }
            out.println(JSON.writeValueAsString(answer));
        }
    }

    static Object run(JsonNode c) throws Exception {
        String name = c.path("name").asText();
        Producer<String, String> producer = PRODUCERS.get(name);
        switch (c.get("command").asText()) {
            case "open" -> {
                producer = new KafkaProducer<>(settings(c), new StringSerializer(), new StringSerializer());
                PRODUCERS.put(name, producer);
                producer.initTransactions();
            }
            case "begin" -> {
                SENT.put(name, new ArrayList<>());
                producer.beginTransaction();
            }
            case "send" -> {
                for (JsonNode r : c.get("records")) {
                    SENT.get(name).add(producer.send(new ProducerRecord<>(
                            r.get(0).asText(), Integer.valueOf(r.get(1).asInt()), null, r.get(2).asText())));
                }
                producer.flush();
                for (Future<RecordMetadata> one : SENT.get(name)) one.get();
                SENT.get(name).clear();
            }
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "close" -> PRODUCERS.remove(name).close(Duration.ofSeconds(5));
            case "read" -> {
                return read(c);
            }
            case "copy" -> {
                return copy(c, producer);
            }
            default -> throw new IllegalArgumentException("unknown command " + c.get("command"));
        }
        return null;
    }

    /** Everything up to where the partition ends for this consumer; that end is reached, whatever lies before it. */
    static Object read(JsonNode c) {
        TopicPartition place = new TopicPartition(c.get("topic").asText(), c.get("partition").asInt());
        List<String> values = new ArrayList<>();
        long deadline = System.nanoTime() + 20_000_000_000L;
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings(c), new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(place));
            consumer.seekToEnd(List.of(place));
            long end = consumer.position(place);
            if (end != consumer.endOffsets(List.of(place)).get(place)) throw new IllegalStateException("two ends");
            consumer.seekToBeginning(List.of(place));
            while (consumer.position(place) < end && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofMillis(200))) values.add(r.value());
            }
            if (consumer.position(place) < end) throw new IllegalStateException("stuck at " + consumer.position(place));
        }
        return values;
    }

    /** Consume, transform, produce: every third transaction is aborted and done again. */
    static Object copy(JsonNode c, Producer<String, String> producer) {
        int wanted = c.get("count").asInt();
        int copied = 0;
        int transactions = 0;
        long deadline = System.nanoTime() + 60_000_000_000L;
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings(c), new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(c.get("topic").asText()));
            while (copied < wanted && System.nanoTime() < deadline) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) continue;
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                producer.beginTransaction();
                for (ConsumerRecord<String, String> r : records) {
                    producer.send(new ProducerRecord<>(c.get("target").asText(), r.partition(), null, "copy of " + r.value()));
                    offsets.put(new TopicPartition(r.topic(), r.partition()), new OffsetAndMetadata(r.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (++transactions % 3 == 0) {
                    producer.abortTransaction();
                    Map<TopicPartition, OffsetAndMetadata> back = consumer.committed(consumer.assignment());
                    for (TopicPartition place : consumer.assignment()) {
                        consumer.seek(place, back.get(place) == null ? 0 : back.get(place).offset());
                    }
                } else {
                    producer.commitTransaction();
                    copied += records.count();
                }
            }
        }
        return copied;
    }

    static Properties settings(JsonNode c) {
        Properties properties = new Properties();
        c.get("settings").fields().forEachRemaining(e -> properties.put(e.getKey(), e.getValue().asText()));
        return properties;
    }
}
