-- All topics, with their overrides.
-- Locks: none.   Returns: a row per topic, by name.
SELECT t.topic_id, t.topic_uuid, t.name, t.partition_count,
       (SELECT jsonb_object_agg(c.name, c.value) FROM kafka.topic_configs c WHERE c.topic_id = t.topic_id) AS configs
FROM kafka.topics t
ORDER BY t.name
