-- The members of a classic group as they were when it was last stable, in the order in which they joined.
-- Locks: none.   Returns: one row per member.
SELECT member_id, instance_id, client_id, client_host, session_timeout_ms, rebalance_timeout_ms,
       coalesce(protocol_names, '{}'), coalesce(protocol_metadata, '{}'), coalesce(assignment, '')
FROM kafka.group_members WHERE group_id = %(group_id)s ORDER BY joined_at, member_id
