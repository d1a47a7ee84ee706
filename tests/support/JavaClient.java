// Kafka's Java client behind a pipe: one JSON command per line in, one JSON answer per line out.
// Bytes are base64, a Java exception is answered as its simple class name and message.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class JavaClient {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<String, Admin> ADMINS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("result", run(JSON.readTree(line)));
            } catch (Throwable failure) {
                answer.putAll(describe(failure));
            }
            out.println(JSON.writeValueAsString(answer));
        }
        for (Admin admin : ADMINS.values()) admin.close(Duration.ofSeconds(5));
    }

    static Object run(JsonNode c) throws Exception {
        return switch (c.get("command").asText()) {
            case "produce" -> produce(c);
            case "produce_again" -> produceAgain(c);
            case "consume" -> consume(c);
            case "positions" -> positions(c);
            case "create_topics" -> createTopics(c);
            case "delete_topics" -> deleteTopics(c);
            case "create_partitions" -> createPartitions(c);
            case "list_topics" -> new ArrayList<>(admin(c).listTopics().names().get());
            case "describe_topics" -> describeTopics(c);
            case "describe_configs" -> describeConfigs(c);
            case "alter_configs" -> alterConfigs(c);
            case "delete_records" -> deleteRecords(c);
            case "describe_cluster" -> describeCluster(c);
            case "describe_log_dirs" -> describeLogDirs(c);
            case "describe_features" -> describeFeatures(c);
            case "list_offsets" -> listOffsets(c);
            default -> throw new IllegalArgumentException("unknown command " + c.get("command"));
        };
    }

    // --- producer and consumer ---------------------------------------------------------------

    static Object produce(JsonNode c) throws Exception {
        try (Producer<byte[], byte[]> producer =
                new KafkaProducer<>(settings(c), new ByteArraySerializer(), new ByteArraySerializer())) {
            return send(producer, c.get("records"));
        }
    }

    // What was refused for another record's sake is sent once more by the same producer: both answers.
    static Object produceAgain(JsonNode c) throws Exception {
        try (Producer<byte[], byte[]> producer =
                new KafkaProducer<>(settings(c), new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Map<String, Object>> first = send(producer, c.get("records"));
            List<JsonNode> again = new ArrayList<>();
            for (int i = 0; i < first.size(); i++) {
                Object error = first.get(i).get("error");
                if (error != null && !error.equals("InvalidRecordException")) again.add(c.get("records").get(i));
            }
            return List.of(first, send(producer, again));
        }
    }

    static List<Map<String, Object>> send(Producer<byte[], byte[]> producer, Iterable<JsonNode> records)
            throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode r : records) {
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    r.get("topic").asText(),
                    r.hasNonNull("partition") ? Integer.valueOf(r.get("partition").asInt()) : null,
                    r.hasNonNull("timestamp") ? Long.valueOf(r.get("timestamp").asLong()) : null,
                    bytes(r.get("key")),
                    bytes(r.get("value")));
            for (JsonNode h : r.path("headers")) record.headers().add(h.get(0).asText(), bytes(h.get(1)));
            sent.add(producer.send(record));
        }
        producer.flush();
        List<Map<String, Object>> results = new ArrayList<>();
        for (Future<RecordMetadata> future : sent) {
            try {
                RecordMetadata done = future.get();
                results.add(
                        Map.of("partition", done.partition(), "offset", done.offset(), "timestamp", done.timestamp()));
            } catch (ExecutionException failure) {
                results.add(describe(failure));
            }
        }
        return results;
    }

    static Object consume(JsonNode c) throws Exception {
        int count = c.get("count").asInt();
        long deadline = System.nanoTime() + c.path("timeout_ms").asLong(20_000) * 1_000_000;
        List<Object> records = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings(c), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> assigned = new ArrayList<>();
            for (JsonNode a : c.get("assignment")) assigned.add(partition(a));
            consumer.assign(assigned);
            for (JsonNode a : c.get("assignment")) {
                String from = a.get(2).asText();
                if (from.equals("beginning")) consumer.seekToBeginning(List.of(partition(a)));
                else if (from.equals("end")) consumer.seekToEnd(List.of(partition(a)));
                else consumer.seek(partition(a), a.get(2).asLong());
            }
            while (records.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                    List<Object> headers = new ArrayList<>();
                    for (Header h : r.headers()) headers.add(Arrays.asList(h.key(), text(h.value())));
                    Map<String, Object> record = new LinkedHashMap<>();
                    record.put("topic", r.topic());
                    record.put("partition", r.partition());
                    record.put("offset", r.offset());
                    record.put("timestamp", r.timestamp());
                    record.put("timestamp_type", r.timestampType().id);
                    record.put("key", text(r.key()));
                    record.put("value", text(r.value()));
                    record.put("headers", headers);
                    records.add(record);
                }
            }
        }
        return records;
    }

    static Object positions(JsonNode c) throws Exception {
        TopicPartition asked = partition(c.get("partition"));
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings(c), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<Object> found = new ArrayList<>();
            for (JsonNode time : c.get("times")) {
                OffsetAndTimestamp one = consumer.offsetsForTimes(Map.of(asked, time.asLong())).get(asked);
                found.add(one == null ? null : one.offset());
            }
            return Map.of(
                    "beginning", consumer.beginningOffsets(List.of(asked)).get(asked),
                    "end", consumer.endOffsets(List.of(asked)).get(asked),
                    "times", found);
        }
    }

    // --- admin ----------------------------------------------------------------------------------

    static Object createTopics(JsonNode c) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        for (JsonNode t : c.get("topics")) {
            Optional<Integer> partitions = Optional.empty();
            if (t.hasNonNull("partitions")) partitions = Optional.of(t.get("partitions").asInt());
            Optional<Short> replicas = Optional.empty();
            if (t.hasNonNull("replication_factor"))
                replicas = Optional.of((short) t.get("replication_factor").asInt());
            topics.add(new NewTopic(t.get("name").asText(), partitions, replicas).configs(strings(t.get("configs"))));
        }
        CreateTopicsResult created = admin(c).createTopics(
                topics, new CreateTopicsOptions().validateOnly(c.path("validate_only").asBoolean()));
        Map<String, Object> results = new LinkedHashMap<>();
        for (NewTopic topic : topics) {
            results.put(topic.name(), settle(() -> {
                created.values().get(topic.name()).get();
                Map<String, Object> result = new LinkedHashMap<>();
                result.put("partitions", created.numPartitions(topic.name()).get());
                result.put("replication_factor", created.replicationFactor(topic.name()).get());
                if (!c.path("validate_only").asBoolean())
                    result.put("topic_id", created.topicId(topic.name()).get().toString());
                result.put("configs", configs(created.config(topic.name()).get()));
                return result;
            }));
        }
        return results;
    }

    static Object deleteTopics(JsonNode c) throws Exception {
        Map<String, Object> results = new LinkedHashMap<>();
        if (c.has("ids")) {
            List<Uuid> ids = new ArrayList<>();
            for (JsonNode id : c.get("ids")) ids.add(Uuid.fromString(id.asText()));
            var deleted = admin(c).deleteTopics(TopicCollection.ofTopicIds(ids)).topicIdValues();
            for (Uuid id : ids) results.put(id.toString(), settle(() -> deleted.get(id).get()));
        } else {
            List<String> names = list(c.get("names"));
            var deleted = admin(c).deleteTopics(names).topicNameValues();
            for (String name : names) results.put(name, settle(() -> deleted.get(name).get()));
        }
        return results;
    }

    static Object createPartitions(JsonNode c) throws Exception {
        Map<String, NewPartitions> asked = new LinkedHashMap<>();
        c.get("totals").fields().forEachRemaining(
                t -> asked.put(t.getKey(), NewPartitions.increaseTo(t.getValue().asInt())));
        var created = admin(c).createPartitions(
                asked, new CreatePartitionsOptions().validateOnly(c.path("validate_only").asBoolean())).values();
        Map<String, Object> results = new LinkedHashMap<>();
        for (String name : asked.keySet()) results.put(name, settle(() -> created.get(name).get()));
        return results;
    }

    static Object describeTopics(JsonNode c) throws Exception {
        Map<String, Object> results = new LinkedHashMap<>();
        if (c.has("ids")) {
            List<Uuid> ids = new ArrayList<>();
            for (JsonNode id : c.get("ids")) ids.add(Uuid.fromString(id.asText()));
            var described = admin(c).describeTopics(TopicCollection.ofTopicIds(ids)).topicIdValues();
            for (Uuid id : ids) results.put(id.toString(), settle(() -> topic(described.get(id).get())));
        } else {
            List<String> names = list(c.get("names"));
            DescribeTopicsOptions options = new DescribeTopicsOptions();
            if (c.has("partition_limit"))
                options.partitionSizeLimitPerResponse(c.get("partition_limit").asInt());
            var described = admin(c).describeTopics(names, options).topicNameValues();
            for (String name : names) results.put(name, settle(() -> topic(described.get(name).get())));
        }
        return results;
    }

    static Object topic(TopicDescription described) {
        List<Object> partitions = new ArrayList<>();
        for (TopicPartitionInfo p : described.partitions())
            partitions.add(Map.of(
                    "partition", p.partition(),
                    "leader", p.leader() == null ? -1 : p.leader().id(),
                    "replicas", p.replicas().stream().map(Node::id).toList(),
                    "isr", p.isr().stream().map(Node::id).toList()));
        return Map.of(
                "name", described.name(),
                "topic_id", described.topicId().toString(),
                "is_internal", described.isInternal(),
                "partitions", partitions);
    }

    static Object describeConfigs(JsonNode c) throws Exception {
        List<ConfigResource> resources = new ArrayList<>();
        for (JsonNode r : c.get("resources")) resources.add(resource(r));
        var described = admin(c).describeConfigs(resources, new DescribeConfigsOptions()
                .includeSynonyms(true).includeDocumentation(true)).values();
        List<Object> results = new ArrayList<>();
        for (ConfigResource r : resources) results.add(settle(() -> configs(described.get(r).get())));
        return results;
    }

    static Object configs(Config config) {
        Map<String, Object> entries = new TreeMap<>();
        for (ConfigEntry e : config.entries()) {
            List<Object> synonyms = new ArrayList<>();
            for (ConfigEntry.ConfigSynonym s : e.synonyms())
                synonyms.add(Arrays.asList(s.name(), s.value(), s.source().name()));
            Map<String, Object> entry = new LinkedHashMap<>();
            entry.put("value", e.value());
            entry.put("source", e.source().name());
            entry.put("type", e.type() == null ? null : e.type().name());  // CreateTopics answers no types
            entry.put("read_only", e.isReadOnly());
            entry.put("sensitive", e.isSensitive());
            entry.put("documentation", e.documentation());
            entry.put("synonyms", synonyms);
            entries.put(e.name(), entry);
        }
        return entries;
    }

    static Object alterConfigs(JsonNode c) throws Exception {
        Map<ConfigResource, Collection<AlterConfigOp>> asked = new LinkedHashMap<>();
        for (JsonNode r : c.get("resources")) {
            List<AlterConfigOp> operations = new ArrayList<>();
            for (JsonNode o : r.get(2))
                operations.add(new AlterConfigOp(
                        new ConfigEntry(o.get(1).asText(), o.hasNonNull(2) ? o.get(2).asText() : null),
                        AlterConfigOp.OpType.valueOf(o.get(0).asText())));
            asked.put(resource(r), operations);
        }
        var altered = admin(c).incrementalAlterConfigs(
                asked, new AlterConfigsOptions().validateOnly(c.path("validate_only").asBoolean())).values();
        List<Object> results = new ArrayList<>();
        for (ConfigResource r : asked.keySet()) results.add(settle(() -> altered.get(r).get()));
        return results;
    }

    static Object deleteRecords(JsonNode c) throws Exception {
        Map<TopicPartition, RecordsToDelete> asked = new LinkedHashMap<>();
        for (JsonNode p : c.get("before"))
            asked.put(partition(p), RecordsToDelete.beforeOffset(p.get(2).asLong()));
        var deleted = admin(c).deleteRecords(asked).lowWatermarks();
        Map<String, Object> results = new LinkedHashMap<>();
        for (TopicPartition p : asked.keySet())
            results.put(p.toString(), settle(() -> deleted.get(p).get().lowWatermark()));
        return results;
    }

    static Object describeCluster(JsonNode c) throws Exception {
        DescribeClusterResult described = admin(c).describeCluster(new DescribeClusterOptions());
        List<Object> nodes = new ArrayList<>();
        for (Node n : described.nodes().get()) nodes.add(Arrays.asList(n.id(), n.host(), n.port()));
        return Map.of(
                "cluster_id", described.clusterId().get(),
                "controller", described.controller().get().id(),
                "nodes", nodes);
    }

    static Object describeLogDirs(JsonNode c) throws Exception {
        List<Integer> brokers = new ArrayList<>();
        for (Node n : admin(c).describeCluster().nodes().get()) brokers.add(n.id());
        Map<String, Object> results = new LinkedHashMap<>();
        for (var broker : admin(c).describeLogDirs(brokers).allDescriptions().get().entrySet()) {
            for (var directory : broker.getValue().entrySet()) {
                Map<String, Object> sizes = new TreeMap<>();
                directory.getValue().replicaInfos().forEach((p, info) -> sizes.put(p.toString(), info.size()));
                Map<String, Object> result = new LinkedHashMap<>();
                result.put("error", directory.getValue().error() == null
                        ? null : directory.getValue().error().getClass().getSimpleName());
                result.put("sizes", sizes);
                results.put(broker.getKey() + ":" + directory.getKey(), result);
            }
        }
        return results;
    }

    static Object describeFeatures(JsonNode c) throws Exception {
        Map<String, Object> finalized = new TreeMap<>();
        admin(c).describeFeatures().featureMetadata().get().finalizedFeatures()
                .forEach((name, range) -> finalized.put(name, range.maxVersionLevel()));
        return finalized;
    }

    static Object listOffsets(JsonNode c) throws Exception {
        Map<TopicPartition, OffsetSpec> asked = new LinkedHashMap<>();
        for (JsonNode p : c.get("partitions")) {
            asked.put(partition(p), switch (p.get(2).asText()) {
                case "earliest" -> OffsetSpec.earliest();
                case "latest" -> OffsetSpec.latest();
                case "max_timestamp" -> OffsetSpec.maxTimestamp();
                default -> OffsetSpec.forTimestamp(p.get(2).asLong());
            });
        }
        var isolation = org.apache.kafka.common.IsolationLevel.valueOf(
                c.path("isolation").asText("READ_UNCOMMITTED"));
        ListOffsetsResult listed = admin(c).listOffsets(asked, new ListOffsetsOptions(isolation));
        Map<String, Object> results = new LinkedHashMap<>();
        for (TopicPartition p : asked.keySet())
            results.put(p.toString(), settle(() -> {
                var info = listed.partitionResult(p).get();
                return List.of(info.offset(), info.timestamp());
            }));
        return results;
    }

    // --- translation ----------------------------------------------------------------------------

    interface Call { Object get() throws Exception; }

    /** The result of one part of a call, or what was thrown for it: parts fail apart from each other. */
    static Object settle(Call call) {
        try {
            return call.get();
        } catch (Exception failure) {
            return describe(failure);
        }
    }

    static Map<String, Object> describe(Throwable failure) {
        Throwable cause = failure;
        while (cause instanceof ExecutionException && cause.getCause() != null) cause = cause.getCause();
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("error", cause.getClass().getSimpleName());
        answer.put("message", cause.getMessage());
        return answer;
    }

    /** Admin clients are kept: a new one each time would cost a connection and a thread. */
    static Admin admin(JsonNode c) {
        return ADMINS.computeIfAbsent(c.get("settings").toString(), ignored -> Admin.create(settings(c)));
    }

    static Properties settings(JsonNode c) {
        Properties properties = new Properties();
        properties.putAll(strings(c.get("settings")));
        return properties;
    }

    static Map<String, String> strings(JsonNode node) {
        Map<String, String> result = new HashMap<>();
        if (node != null) node.fields().forEachRemaining(e -> result.put(e.getKey(), e.getValue().asText()));
        return result;
    }

    static List<String> list(JsonNode node) {
        List<String> result = new ArrayList<>();
        node.forEach(item -> result.add(item.asText()));
        return result;
    }

    static TopicPartition partition(JsonNode node) {
        return new TopicPartition(node.get(0).asText(), node.get(1).asInt());
    }

    static ConfigResource resource(JsonNode node) {
        return new ConfigResource(ConfigResource.Type.valueOf(node.get(0).asText()), node.get(1).asText());
    }

    static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    static String text(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }
}
