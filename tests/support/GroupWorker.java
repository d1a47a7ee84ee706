// Members of a group by Kafka's Java consumer, in a process of their own: what group_worker.py is for Python.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Scanner;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class GroupWorker {
    static void say(StringBuilder lines) {
        synchronized (System.out) {
            System.out.print(lines);
            System.out.flush();
        }
    }

    static void line(StringBuilder lines, String text) {
        lines.append(System.nanoTime()).append(' ').append(text).append('\n');
    }

    static void run(String bootstrap, String group, String topic, String assignor, AtomicBoolean stop) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", group);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        if (assignor.equals("consumer")) {
            properties.put("group.protocol", "consumer");
        } else {
            properties.put("partition.assignment.strategy", assignor);
            properties.put("session.timeout.ms", "6000");
            properties.put("heartbeat.interval.ms", "1000");
        }
        properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("value.deserializer", ByteArrayDeserializer.class.getName());
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
            // What could not be committed in the middle of a rebalance is committed after it: whoever keeps a partition
            // through it does not read its records again.
            Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {}

                public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                    positions.keySet().removeAll(assigned);
                    StringBuilder lines = new StringBuilder();
                    assigned.forEach(one -> line(lines, "assigned " + one.partition()));
                    say(lines);
                }
            });
            while (!stop.get()) {
                StringBuilder lines = new StringBuilder();
                consumer.poll(Duration.ofMillis(200)).forEach(record -> {
                    line(lines, "record " + record.partition() + " " + record.offset() + " "
                        + new String(record.value(), StandardCharsets.UTF_8));
                    positions.put(new TopicPartition(topic, record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
                });
                positions.keySet().retainAll(consumer.assignment());
                if (!lines.isEmpty()) say(lines);
                if (positions.isEmpty()) continue;
                try {
                    consumer.commitSync(positions);
                } catch (KafkaException refused) {
                    continue;
                }
                StringBuilder committed = new StringBuilder();
                positions.forEach((one, position) ->
                    line(committed, "committed " + one.partition() + " " + position.offset()));
                say(committed);
                positions.clear();
            }
        }
    }

    public static void main(String[] a) throws Exception {
        List<Thread> threads = new ArrayList<>();
        List<AtomicBoolean> stops = new ArrayList<>();
        Scanner input = new Scanner(System.in);
        while (input.hasNextLine()) {
            if (input.nextLine().strip().equals("+")) {
                AtomicBoolean stop = new AtomicBoolean();
                Thread thread = new Thread(() -> run(a[0], a[1], a[2], a[3], stop));
                thread.start();
                threads.add(thread);
                stops.add(stop);
            } else {
                stops.remove(stops.size() - 1).set(true);
                threads.remove(threads.size() - 1).join();
            }
        }
        stops.forEach(stop -> stop.set(true));
        for (Thread thread : threads) thread.join();
    }
}
