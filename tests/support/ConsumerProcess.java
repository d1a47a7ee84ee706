// One consumer in a group, in a process of its own so that it can be killed. What it is to do comes as one JSON line,
// what happens to it goes out as JSON lines; when its input ends, it leaves the group.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ConsumerProcess {
    static volatile boolean isOver = false;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ObjectMapper json = new ObjectMapper();
        JsonNode task = json.readTree(in.readLine());
        Properties settings = new Properties();
        task.get("settings").fields().forEachRemaining(s -> settings.put(s.getKey(), s.getValue().asText()));
        Thread ending = new Thread(() -> {
            try {
                while (in.readLine() != null) {}
            } catch (Exception ignored) {
            }
            isOver = true;
        });
        ending.setDaemon(true);
        ending.start();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            if (task.hasNonNull("pattern")) {
                consumer.subscribe(new SubscriptionPattern(task.get("pattern").asText()));
            } else {
                List<String> topics = new ArrayList<>();
                task.get("topics").forEach(t -> topics.add(t.asText()));
                consumer.subscribe(topics);
            }
            Set<TopicPartition> told = null;
            while (!isOver) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(50));
                Set<TopicPartition> assigned = new HashSet<>(consumer.assignment());
                if (!assigned.equals(told)) {
                    told = assigned;
                    List<Object> names = new ArrayList<>();
                    for (TopicPartition p : assigned) names.add(List.of(p.topic(), p.partition()));
                    out.println(json.writeValueAsString(Map.of("assigned", names)));
                }
                List<String> values = new ArrayList<>();
                for (ConsumerRecord<String, String> r : records) values.add(r.value());
                if (!values.isEmpty()) out.println(json.writeValueAsString(Map.of("values", values)));
            }
        } catch (Throwable failure) {
            out.println(json.writeValueAsString(Map.of("error", failure.toString())));
        }
    }
}
