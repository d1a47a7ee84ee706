-- Where partitions start and end, for monitoring.
-- Locks: none.   Returns: topic, partition, first and next offset; at most `limit` rows.
SELECT t.name, p.partition, p.log_start_offset, p.next_offset
FROM kafka.topics t JOIN kafka.partitions p USING (topic_id)
ORDER BY t.topic_id, p.partition
LIMIT %(limit)s
