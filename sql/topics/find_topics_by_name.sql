-- Topics by name, with their overrides and what was altered for this broker and for all of them.
-- Locks: none.   Returns: a row per topic that exists.
SELECT t.topic_id, t.topic_uuid, t.name, t.partition_count,
       (SELECT jsonb_object_agg(c.name, c.value) FROM kafka.topic_configs c WHERE c.topic_id = t.topic_id) AS configs,
       (SELECT jsonb_object_agg(b.name, b.value) FROM kafka.broker_configs b WHERE b.broker_id = %(broker_id)s) AS own,
       (SELECT jsonb_object_agg(b.name, b.value) FROM kafka.broker_configs b WHERE b.broker_id IS NULL) AS shared
FROM kafka.topics t
WHERE t.name = ANY (%(names)s::text[])
