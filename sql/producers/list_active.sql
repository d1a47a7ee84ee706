-- The producers that a partition knows, for DescribeProducers.
-- Locks: none.   Returns: a row per producer.
SELECT producer_id, producer_epoch, last_sequence, timestamps_ms[cardinality(timestamps_ms)]
FROM kafka.producer_sequences
WHERE topic_id = %(topic_id)s AND partition_id = %(partition)s
ORDER BY producer_id
