-- Write down a classic group that became stable or empty, with all its members.
-- Locks: the group's row and its members', if the coordinator is still who it was; else nothing is written.
-- Returns: one row if it was written.
WITH held AS (
    UPDATE kafka.groups g SET
        group_type = 'classic', state = %(state)s, generation = %(generation)s, protocol_type = %(protocol_type)s,
        protocol_name = %(protocol_name)s, leader_id = %(leader_id)s, assignment_epoch = 0, state_changed_at = now()
    WHERE g.group_id = %(group_id)s AND g.coordinator_epoch = %(epoch)s
    RETURNING g.group_id
), gone AS (
    DELETE FROM kafka.group_members m USING held
    WHERE m.group_id = held.group_id AND m.member_id <> ALL (%(member_ids)s::text[])
), kept AS (
    INSERT INTO kafka.group_members AS m (
        group_id, member_id, instance_id, client_id, client_host, session_timeout_ms, rebalance_timeout_ms,
        subscribed_topics, protocol_names, protocol_metadata, assignment, joined_at)
    SELECT held.group_id, n.member_id, n.instance_id, n.client_id, n.client_host, n.session_timeout_ms,
           n.rebalance_timeout_ms, n.subscribed_topics, n.protocol_names,
           ARRAY(SELECT decode(p.metadata, 'base64') FROM unnest(n.protocol_metadata) WITH ORDINALITY AS p (metadata, place)
                 ORDER BY p.place),
           decode(n.assignment, 'base64'), now() + n.place * interval '1 microsecond'
    FROM held, jsonb_to_recordset(%(members)s::jsonb) AS n (
        place integer, member_id text, instance_id text, client_id text, client_host text, session_timeout_ms integer,
        rebalance_timeout_ms integer, subscribed_topics text[], protocol_names text[], protocol_metadata text[],
        assignment text)
    ON CONFLICT (group_id, member_id) DO UPDATE SET
        instance_id = excluded.instance_id, client_id = excluded.client_id, client_host = excluded.client_host,
        session_timeout_ms = excluded.session_timeout_ms, rebalance_timeout_ms = excluded.rebalance_timeout_ms,
        subscribed_topics = excluded.subscribed_topics, protocol_names = excluded.protocol_names,
        protocol_metadata = excluded.protocol_metadata, assignment = excluded.assignment,
        member_epoch = 0, previous_member_epoch = 0, member_state = NULL, subscribed_regex = NULL,
        server_assignor = NULL, assigned_partitions = NULL, revoking_partitions = NULL, target_partitions = NULL
)
SELECT 1 FROM held
