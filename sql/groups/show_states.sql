-- Let people see in which state groups are between two generations. Nothing depends on it.
-- Locks: rows of groups whose coordinator is still who it was.   Returns: nothing.
UPDATE kafka.groups g SET state = s.state, state_changed_at = now()
FROM unnest(%(group_ids)s::text[], %(epochs)s::bigint[], %(states)s::text[]) AS s (group_id, epoch, state)
WHERE g.group_id = s.group_id AND g.coordinator_epoch = s.epoch AND g.state <> s.state
