-- Make records below an offset unreadable; housekeeping removes their rows afterwards.
-- Locks: the partition's row.   Returns: the log's start after it, or no row when the partition is gone.
UPDATE kafka.partitions
SET log_start_offset = greatest(log_start_offset, %(offset)s)
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND next_offset >= %(offset)s
RETURNING log_start_offset
