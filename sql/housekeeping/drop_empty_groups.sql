-- Drop groups that have neither members nor offsets nor workers, once they have been so for a while.
-- Locks: the rows that go.   Returns: how many went.
WITH gone AS (
    DELETE FROM kafka.groups g
    WHERE g.state = 'Empty' AND g.state_changed_at < now() - %(idle_ms)s * interval '1 millisecond'
      AND NOT EXISTS (SELECT FROM kafka.consumer_offsets o WHERE o.group_id = g.group_id)
      AND NOT EXISTS (SELECT FROM kafka.group_members m WHERE m.group_id = g.group_id)
      AND NOT EXISTS (SELECT FROM kafka.transaction_offsets p WHERE p.group_id = g.group_id)
      AND NOT EXISTS (SELECT FROM kafka.delivery_partitions d WHERE d.group_id = g.group_id)
    RETURNING 1
)
SELECT count(*) FROM gone
