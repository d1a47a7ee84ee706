// Consume, transform, produce in transactions with Kafka's Java clients: what exactly_once_worker.py is for Python.

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class ExactlyOnceWorker {
    static volatile boolean stop = false;

    static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }

    static void rewind(KafkaConsumer<byte[], byte[]> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition one : consumer.assignment()) {
            OffsetAndMetadata position = committed.get(one);
            consumer.seek(one, position == null ? 0 : position.offset());
        }
    }

    static void run(String bootstrap, String group, String source, String target, String transactionalId)
            throws InterruptedException {
        Properties reading = new Properties();
        reading.put("bootstrap.servers", bootstrap);
        reading.put("group.id", group);
        reading.put("group.protocol", "consumer");
        reading.put("isolation.level", "read_committed");
        reading.put("enable.auto.commit", "false");
        reading.put("auto.offset.reset", "earliest");
        reading.put("max.poll.records", "30");
        reading.put("key.deserializer", ByteArrayDeserializer.class.getName());
        reading.put("value.deserializer", ByteArrayDeserializer.class.getName());
        Properties writing = new Properties();
        writing.put("bootstrap.servers", bootstrap);
        writing.put("transactional.id", transactionalId);
        writing.put("key.serializer", ByteArraySerializer.class.getName());
        writing.put("value.serializer", ByteArraySerializer.class.getName());
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(writing);
                KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(reading)) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            while (!stop) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) continue;
                try {
                    producer.beginTransaction();
                    Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
                    for (ConsumerRecord<byte[], byte[]> one : records) {
                        producer.send(new ProducerRecord<>(target, one.partition(), null, one.value()));
                        positions.put(new TopicPartition(source, one.partition()),
                            new OffsetAndMetadata(one.offset() + 1));
                    }
                    producer.flush();
                    say("open");
                    Thread.sleep(30);
                    producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
                    producer.commitTransaction();
                    say("committed " + records.count());
                } catch (KafkaException refused) {
                    say("again " + refused);
                    producer.abortTransaction(); // throws if the producer is beyond help: a new one is made
                    rewind(consumer);
                }
            }
        }
    }

    public static void main(String[] a) throws Exception {
        Thread listener = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (java.io.IOException ended) {
                // as good as its end
            }
            stop = true;
        });
        listener.setDaemon(true);
        listener.start();
        while (!stop) {
            try {
                run(a[0], a[1], a[2], a[3], a[4]);
            } catch (KafkaException beyondHelp) {
                say("lost " + beyondHelp);
            }
        }
    }
}
