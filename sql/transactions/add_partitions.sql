-- These partitions belong to the producer's open transaction. One that was deleted meanwhile is left out.
-- Locks: the new rows, under the transaction's row lock.   Returns: nothing.
INSERT INTO kafka.transaction_partitions (producer_id, topic_id, partition)
SELECT %(producer_id)s, p.topic_id, p.partition
FROM unnest(%(topic_ids)s::int[], %(partitions)s::int[]) AS added (topic_id, partition)
JOIN kafka.partitions p ON p.topic_id = added.topic_id AND p.partition = added.partition
ON CONFLICT (producer_id, topic_id, partition) DO NOTHING
