-- What these producers last wrote to these partitions, and whether a missing state may have been dropped.
-- A producer younger than the partition's last drop, and known here, cannot have lost its state.
-- Locks: none; proven by the partition's next_offset when the commit advances it.   Returns: a row per question.
SELECT wanted.topic_id, wanted.partition_id, wanted.producer_id,
       s.producer_epoch, s.last_sequence, s.run_length, s.batches,
       coalesce(i.created_at <= p.producers_dropped_at, i.producer_id IS NULL) AS may_be_forgotten,
       i.transactional_id IS NOT NULL AS is_transactional
FROM unnest(%(topic_ids)s::int[], %(partitions)s::int[], %(producer_ids)s::bigint[])
         AS wanted (topic_id, partition_id, producer_id)
JOIN kafka.partitions p ON p.topic_id = wanted.topic_id AND p.partition = wanted.partition_id
LEFT JOIN kafka.producer_sequences s ON s.producer_id = wanted.producer_id
     AND s.topic_id = wanted.topic_id AND s.partition_id = wanted.partition_id
LEFT JOIN kafka.producer_ids i ON i.producer_id = wanted.producer_id
