-- Let workers of a group read a topic; TW004 when consumers are in the group.
-- Locks: the group's row, shared; new rows.   Returns: how many partitions are new to the group.
SELECT kafka.join_worker_group(%(group_id)s, %(topic_id)s, %(from_latest)s)
