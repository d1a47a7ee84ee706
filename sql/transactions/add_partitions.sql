-- These partitions belong to the producer's open transaction.
-- Locks: the new rows, under the transaction's row lock.   Returns: nothing.
INSERT INTO kafka.transaction_partitions (producer_id, topic_id, partition)
SELECT %(producer_id)s, topic_id, partition
FROM unnest(%(topic_ids)s::int[], %(partitions)s::int[]) AS added (topic_id, partition)
ON CONFLICT (producer_id, topic_id, partition) DO NOTHING
