-- Drop offsets that nobody uses: of an empty group since it became empty, of a group that only stores offsets and of
-- topics that a stable group of consumers does not read since they were committed. An old client's own expiry comes
-- first. Who reads by pattern may read any topic. Workers keep theirs: an effect must not happen again for being old.
-- Locks: the rows that go.   Returns: how many went.
WITH gone AS (
    DELETE FROM kafka.consumer_offsets o
    USING kafka.groups g, kafka.topics t
    WHERE g.group_id = o.group_id AND t.topic_id = o.topic_id
      AND (g.protocol_type IS NULL OR g.state = 'Empty'
           OR (g.state = 'Stable' AND g.protocol_type = 'consumer'
               AND NOT EXISTS (SELECT FROM kafka.group_members m
                               WHERE m.group_id = g.group_id
                                 AND (m.subscribed_topics IS NULL OR m.subscribed_regex IS NOT NULL
                                      OR t.name = ANY (m.subscribed_topics)))))
      AND now() >= coalesce(
          o.expires_at,
          CASE WHEN g.state = 'Empty' AND g.protocol_type IS NOT NULL THEN g.state_changed_at ELSE o.committed_at END
              + %(retention_minutes)s * interval '1 minute')
      AND NOT EXISTS (SELECT FROM kafka.transaction_offsets p
                      WHERE p.group_id = o.group_id AND p.topic_id = o.topic_id AND p.partition = o.partition)
      AND NOT EXISTS (SELECT FROM kafka.delivery_partitions d
                      WHERE d.group_id = o.group_id AND d.topic_id = o.topic_id AND d.partition = o.partition)
    RETURNING 1
)
SELECT count(*) FROM gone
