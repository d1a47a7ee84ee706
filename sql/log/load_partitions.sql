-- Where the logs of these partitions start and end.
-- Locks: none.   Returns: a row per partition that exists.
SELECT p.topic_id, p.partition, p.log_start_offset, p.last_stable_offset, p.next_offset, p.leader_epoch
FROM unnest(%(topic_ids)s::int[], %(partitions)s::int[]) AS wanted (topic_id, partition)
JOIN kafka.partitions p ON p.topic_id = wanted.topic_id AND p.partition = wanted.partition
