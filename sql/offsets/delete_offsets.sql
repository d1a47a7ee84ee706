-- Delete committed offsets, if the group's coordinator is still who it was.
-- Locks: the group's row (shared), then those of the offsets.   Returns: one row if the coordinator is the same.
WITH held AS MATERIALIZED (
    SELECT group_id FROM kafka.groups
    WHERE group_id = %(group_id)s AND coordinator_epoch = %(epoch)s FOR SHARE
), gone AS (
    DELETE FROM kafka.consumer_offsets o
    USING held, unnest(%(topic_ids)s::integer[], %(partitions)s::integer[]) AS n (topic_id, partition)
    WHERE o.group_id = held.group_id AND o.topic_id = n.topic_id AND o.partition = n.partition
)
SELECT 1 FROM held
