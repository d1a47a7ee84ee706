-- Write down a consumer group (KIP-848): its epochs, who its members are, and those of them that changed.
-- Locks: the group's row and its members', if the coordinator is still who it was; else nothing is written.
-- Returns: one row if it was written.
WITH held AS (
    UPDATE kafka.groups g SET
        group_type = 'consumer', state = %(state)s, generation = %(group_epoch)s,
        assignment_epoch = %(assignment_epoch)s, protocol_type = 'consumer', protocol_name = %(assignor)s,
        leader_id = NULL,
        state_changed_at = CASE WHEN g.state = %(state)s THEN g.state_changed_at ELSE now() END
    WHERE g.group_id = %(group_id)s AND g.coordinator_epoch = %(epoch)s
    RETURNING g.group_id
), gone AS (
    DELETE FROM kafka.group_members m USING held
    WHERE m.group_id = held.group_id AND m.member_id <> ALL (%(member_ids)s::text[])
), kept AS (
    INSERT INTO kafka.group_members AS m (
        group_id, member_id, instance_id, rack_id, client_id, client_host, session_timeout_ms, rebalance_timeout_ms,
        server_assignor, subscribed_topics, subscribed_regex, protocol_names, protocol_metadata, member_epoch,
        previous_member_epoch, member_state, assigned_partitions, revoking_partitions, target_partitions)
    SELECT held.group_id, n.member_id, n.instance_id, n.rack_id, n.client_id, n.client_host, n.session_timeout_ms,
           n.rebalance_timeout_ms, n.server_assignor, n.subscribed_topics, n.subscribed_regex, n.protocol_names,
           CASE WHEN n.protocol_names IS NOT NULL THEN
               ARRAY(SELECT decode(p.metadata, 'base64')
                     FROM unnest(n.protocol_metadata) WITH ORDINALITY AS p (metadata, place) ORDER BY p.place) END,
           n.member_epoch, n.previous_member_epoch, n.member_state, n.assigned_partitions, n.revoking_partitions,
           n.target_partitions
    FROM held, jsonb_to_recordset(%(members)s::jsonb) AS n (
        member_id text, instance_id text, rack_id text, client_id text, client_host text, session_timeout_ms integer,
        rebalance_timeout_ms integer, server_assignor text, subscribed_topics text[], subscribed_regex text,
        protocol_names text[], protocol_metadata text[], member_epoch integer, previous_member_epoch integer,
        member_state text, assigned_partitions jsonb, revoking_partitions jsonb, target_partitions jsonb)
    ON CONFLICT (group_id, member_id) DO UPDATE SET
        instance_id = excluded.instance_id, rack_id = excluded.rack_id, client_id = excluded.client_id,
        client_host = excluded.client_host, session_timeout_ms = excluded.session_timeout_ms,
        rebalance_timeout_ms = excluded.rebalance_timeout_ms, server_assignor = excluded.server_assignor,
        subscribed_topics = excluded.subscribed_topics, subscribed_regex = excluded.subscribed_regex,
        protocol_names = excluded.protocol_names, protocol_metadata = excluded.protocol_metadata,
        member_epoch = excluded.member_epoch, previous_member_epoch = excluded.previous_member_epoch,
        member_state = excluded.member_state, assigned_partitions = excluded.assigned_partitions,
        revoking_partitions = excluded.revoking_partitions, target_partitions = excluded.target_partitions,
        assignment = NULL
)
SELECT 1 FROM held
