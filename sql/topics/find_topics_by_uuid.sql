-- Topics by Kafka's topic id, with their overrides.
-- Locks: none.   Returns: a row per topic that exists.
SELECT t.topic_id, t.topic_uuid, t.name, t.partition_count,
       (SELECT jsonb_object_agg(c.name, c.value) FROM kafka.topic_configs c WHERE c.topic_id = t.topic_id) AS configs
FROM kafka.topics t
WHERE t.topic_uuid = ANY (%(uuids)s::uuid[])
