-- Commit a Kafka transaction inside the caller's database transaction: its records become true with everything else.
-- The epoch is raised: whoever wrote them cannot go on.
-- Locks: the transaction, its partitions in order, then offsets.   Returns: a row per partition.
SELECT topic_id, partition, next_offset
FROM kafka.end_transaction(%(producer_id)s, true, least(%(producer_epoch)s + 1, 32767)::smallint, 'pipeline')
