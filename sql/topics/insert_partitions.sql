-- Add the partitions [first, last) of a topic.
-- Locks: the new rows.   Returns: nothing.
INSERT INTO kafka.partitions (topic_id, partition)
SELECT %(topic_id)s, generate_series(%(first)s::int, %(last)s::int - 1)
