-- Hold a topic still while its overrides are judged and replaced.
-- Locks: the topic's row.   Returns: its overrides, or no row when it is gone.
SELECT (SELECT jsonb_object_agg(c.name, c.value) FROM kafka.topic_configs c WHERE c.topic_id = t.topic_id) AS configs
FROM kafka.topics t WHERE t.topic_id = %(topic_id)s FOR NO KEY UPDATE
