-- Drop states of producers that have not written since they were found idle.
-- Locks: the rows deleted, under the partition's row lock.   Returns: nothing.
DELETE FROM kafka.producer_sequences s
USING unnest(%(producer_ids)s::bigint[], %(updated_at)s::text[]) AS idle (producer_id, updated_at)
WHERE s.topic_id = %(topic_id)s AND s.partition_id = %(partition)s
  AND s.producer_id = idle.producer_id AND s.updated_at = idle.updated_at::timestamptz
