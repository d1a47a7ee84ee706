-- The members of a consumer group (KIP-848), in the order in which they joined.
-- Locks: none.   Returns: one row per member.
SELECT member_id, instance_id, rack_id, client_id, client_host, session_timeout_ms, rebalance_timeout_ms,
       server_assignor, coalesce(subscribed_topics, '{}'), subscribed_regex, protocol_names, protocol_metadata,
       member_epoch, previous_member_epoch, member_state, coalesce(assigned_partitions, '{}'),
       coalesce(revoking_partitions, '{}'), coalesce(target_partitions, '{}')
FROM kafka.group_members WHERE group_id = %(group_id)s ORDER BY joined_at, member_id
