-- These offsets become true if the producer's open transaction commits; a later one replaces an earlier one.
-- Those of a topic that was deleted meanwhile are left out.
-- Locks: the rows, under the transaction's row lock.   Returns: nothing.
INSERT INTO kafka.transaction_offsets (producer_id, group_id, topic_id, partition, committed_offset, leader_epoch, metadata)
SELECT %(producer_id)s, %(group_id)s, o.topic_id, o.partition, o.committed_offset, nullif(o.leader_epoch, -1), o.metadata
FROM unnest(%(topic_ids)s::int[], %(partitions)s::int[], %(offsets)s::bigint[], %(leader_epochs)s::int[], %(metadata)s::text[])
         AS o (topic_id, partition, committed_offset, leader_epoch, metadata)
JOIN kafka.topics t ON t.topic_id = o.topic_id
ON CONFLICT (producer_id, group_id, topic_id, partition) DO UPDATE SET
    committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch, metadata = excluded.metadata
