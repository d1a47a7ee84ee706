-- Commit or abort everything of a producer's transaction in this database transaction.
-- Locks: the transaction's row, its partitions in order, its offsets.   Returns: a row per partition that got a marker.
SELECT topic_id, partition, next_offset, last_stable_offset, leader_epoch, marked_at
FROM kafka.end_transaction(%(producer_id)s, %(commit)s, %(next_epoch)s::smallint, %(cause)s)
