-- Every group.
-- Locks: none.   Returns: id, type, state and protocol type.
SELECT group_id, group_type, state, coalesce(protocol_type, '') FROM kafka.groups ORDER BY group_id
