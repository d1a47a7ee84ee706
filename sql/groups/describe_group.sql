-- A group as people are shown it.
-- Locks: none.   Returns: type, state, protocol, generation, coordinator; no row if there is none.
SELECT group_type, state, coalesce(protocol_type, ''), coalesce(protocol_name, ''), generation, coordinator_id
FROM kafka.groups WHERE group_id = %(group_id)s
