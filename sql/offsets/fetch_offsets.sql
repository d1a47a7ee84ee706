-- Committed offsets of a group for the partitions named.
-- Locks: none.   Returns: topic id, partition, offset, leader epoch (-1 if none) and metadata.
SELECT o.topic_id, o.partition, o.committed_offset, coalesce(o.leader_epoch, -1), o.metadata
FROM kafka.consumer_offsets o
JOIN unnest(%(topic_ids)s::integer[], %(partitions)s::integer[]) AS n (topic_id, partition)
    ON n.topic_id = o.topic_id AND n.partition = o.partition
WHERE o.group_id = %(group_id)s
