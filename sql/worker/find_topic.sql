-- A topic by name, with its own settings.
-- Locks: none.   Returns: its id, its number of partitions and its settings; no row if there is none.
SELECT t.topic_id, t.partition_count,
       (SELECT jsonb_object_agg(c.name, c.value) FROM kafka.topic_configs c WHERE c.topic_id = t.topic_id)
FROM kafka.topics t WHERE t.name = %(topic)s
