-- Commit offsets of several groups, each only if its coordinator is still who it was. Offsets of topics that were
-- deleted meanwhile are left out.
-- Locks: rows of groups (shared, sorted), then of topics (key share, sorted), then of offsets.
-- Returns: the groups whose offsets were written.
WITH held AS MATERIALIZED (
    SELECT g.group_id FROM kafka.groups g
    JOIN unnest(%(groups)s::text[], %(epochs)s::bigint[]) AS c (group_id, epoch)
        ON c.group_id = g.group_id AND c.epoch = g.coordinator_epoch
    ORDER BY g.group_id FOR SHARE OF g
), known AS MATERIALIZED (
    SELECT t.topic_id FROM kafka.topics t
    WHERE t.topic_id = ANY (%(topic_ids)s::integer[]) AND EXISTS (SELECT FROM held)
    ORDER BY t.topic_id FOR KEY SHARE
), written AS (
    INSERT INTO kafka.consumer_offsets AS o (
        group_id, topic_id, partition, committed_offset, leader_epoch, metadata, expires_at)
    SELECT n.group_id, n.topic_id, n.partition, n.committed_offset, n.leader_epoch, n.metadata,
           now() + n.retention_ms * interval '1 millisecond'
    FROM unnest(%(group_ids)s::text[], %(topic_ids)s::integer[], %(partitions)s::integer[], %(offsets)s::bigint[],
                %(leader_epochs)s::integer[], %(metadata)s::text[], %(retentions_ms)s::bigint[])
         AS n (group_id, topic_id, partition, committed_offset, leader_epoch, metadata, retention_ms)
    JOIN held USING (group_id) JOIN known USING (topic_id)
    ORDER BY n.group_id, n.topic_id, n.partition
    ON CONFLICT (group_id, topic_id, partition) DO UPDATE SET
        committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
        metadata = excluded.metadata, committed_at = now(), expires_at = excluded.expires_at
)
SELECT group_id FROM held
