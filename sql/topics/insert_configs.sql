-- Store a topic's overrides.
-- Locks: the new rows, under the topic's row lock.   Returns: nothing.
INSERT INTO kafka.topic_configs (topic_id, name, value)
SELECT %(topic_id)s, name, value FROM unnest(%(names)s::text[], %(values)s::text[]) AS o (name, value)
