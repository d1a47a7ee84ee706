-- Commit or abort everything of a producer's transaction in this database transaction.
-- Locks: the transaction's row, its partitions in order, its offsets.   Returns: a row per partition that got a marker;
-- in each, how many business keys were settled with it, as kafka.settle_keys leaves it behind.
SELECT topic_id, partition, next_offset, last_stable_offset, leader_epoch, marked_at,
       coalesce(nullif(current_setting('tablewire.settled_keys', true), ''), '0')::int AS settled_keys
FROM kafka.end_transaction(%(producer_id)s, %(commit)s, %(next_epoch)s::smallint, %(cause)s)
