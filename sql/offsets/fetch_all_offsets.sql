-- All committed offsets of a group.
-- Locks: none.   Returns: topic name and uuid, topic id, partition, offset, leader epoch (-1 if none) and metadata.
SELECT t.name, t.topic_uuid, o.topic_id, o.partition, o.committed_offset, coalesce(o.leader_epoch, -1), o.metadata
FROM kafka.consumer_offsets o JOIN kafka.topics t USING (topic_id)
WHERE o.group_id = %(group_id)s ORDER BY t.name, o.partition
