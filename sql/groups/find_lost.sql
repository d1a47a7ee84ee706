-- Which of the groups that a gateway takes for its own have another coordinator, or are gone.
-- Locks: none.   Returns: their ids.
SELECT s.group_id
FROM unnest(%(group_ids)s::text[], %(epochs)s::bigint[]) AS s (group_id, epoch)
LEFT JOIN kafka.groups g ON g.group_id = s.group_id AND g.coordinator_epoch = s.epoch
WHERE g.group_id IS NULL
