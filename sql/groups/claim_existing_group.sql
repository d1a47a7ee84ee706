-- Become the coordinator of a group if there is such a group. Whoever coordinated it before can write no more.
-- Locks: the group's row; waits for commits of offsets in flight.   Returns: the new epoch, the group's type and state.
UPDATE kafka.groups AS g SET
    coordinator_id = %(node_id)s,
    coordinator_epoch = greatest(g.coordinator_epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
WHERE g.group_id = %(group_id)s
RETURNING g.coordinator_epoch, g.group_type, g.state, g.generation, g.protocol_type, g.protocol_name, g.leader_id
