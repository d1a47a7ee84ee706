-- Add the partitions [first, last) of a topic. Where another topic had its name, producers of that one may come along,
-- as if their states had been dropped here.
-- Locks: the new rows.   Returns: nothing.
INSERT INTO kafka.partitions (topic_id, partition, producers_dropped_at)
SELECT t.topic_id, generate_series(%(first)s::int, %(last)s::int - 1),
       (SELECT now() FROM kafka.deleted_topics d WHERE d.name = t.name)
FROM kafka.topics t WHERE t.topic_id = %(topic_id)s
