-- Become a group's coordinator; a group that does not exist is made. Whoever coordinated it before can write no more.
-- An epoch is later than any before it, also if the group was deleted and made anew.
-- Locks: the group's row; waits for commits of offsets in flight.   Returns: the new epoch, the group's type and state.
INSERT INTO kafka.groups AS g (group_id, coordinator_id, coordinator_epoch)
VALUES (%(group_id)s, %(node_id)s, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
ON CONFLICT (group_id) DO UPDATE SET
    coordinator_id = excluded.coordinator_id,
    coordinator_epoch = greatest(g.coordinator_epoch + 1, excluded.coordinator_epoch)
RETURNING g.coordinator_epoch, g.group_type, g.state, g.generation, g.protocol_type, g.protocol_name, g.leader_id
