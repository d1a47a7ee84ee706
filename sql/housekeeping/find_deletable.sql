-- Partitions with rows below their log's start.
-- Locks: none.   Returns: a row per partition.
SELECT topic_id, partition, deleted_before_offset, log_start_offset
FROM kafka.partitions WHERE deleted_before_offset < log_start_offset
LIMIT 100
