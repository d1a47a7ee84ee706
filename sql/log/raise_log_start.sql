-- Make records below an offset unreadable; housekeeping removes their rows afterwards. An open transaction does not
-- prevent it, as in Kafka: the last stable offset is never below the log's start.
-- Locks: the partition's row.   Returns: the log's start after it, or no row when the partition is gone.
UPDATE kafka.partitions
SET log_start_offset = greatest(log_start_offset, %(offset)s),
    last_stable_offset = greatest(last_stable_offset, %(offset)s)
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND next_offset >= %(offset)s
RETURNING log_start_offset
