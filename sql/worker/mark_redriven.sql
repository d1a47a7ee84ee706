-- These dead letters went back to their topics.
-- Locks: their rows.   Returns: nothing.
UPDATE kafka.dead_letters l SET state = 'redriven', redriven_at = now(), redriven_offset = n.redriven_offset
FROM unnest(%(ids)s::bigint[], %(offsets)s::bigint[]) AS n (dead_letter_id, redriven_offset)
WHERE l.dead_letter_id = n.dead_letter_id
