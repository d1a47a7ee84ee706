-- Write offsets that were accepted before, as part of a larger change. A group that was deleted meanwhile is made anew;
-- topics that were deleted are left out.
-- Locks: the group's row, rows of topics (key share, sorted), then of offsets.   Returns: nothing.
WITH made AS (
    INSERT INTO kafka.groups (group_id) VALUES (%(group_id)s) ON CONFLICT (group_id) DO NOTHING
), known AS MATERIALIZED (
    SELECT t.topic_id FROM kafka.topics t WHERE t.topic_id = ANY (%(topic_ids)s::integer[])
    ORDER BY t.topic_id FOR KEY SHARE
)
INSERT INTO kafka.consumer_offsets AS o (group_id, topic_id, partition, committed_offset, leader_epoch, metadata)
SELECT %(group_id)s, n.topic_id, n.partition, n.committed_offset, n.leader_epoch, n.metadata
FROM unnest(%(topic_ids)s::integer[], %(partitions)s::integer[], %(offsets)s::bigint[], %(leader_epochs)s::integer[],
            %(metadata)s::text[]) AS n (topic_id, partition, committed_offset, leader_epoch, metadata)
JOIN known USING (topic_id)
ORDER BY n.topic_id, n.partition
ON CONFLICT (group_id, topic_id, partition) DO UPDATE SET
    committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch, metadata = excluded.metadata,
    committed_at = now(), expires_at = NULL
