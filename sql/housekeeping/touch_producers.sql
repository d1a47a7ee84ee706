-- Bring last_active_at up to date, now and then instead of at each produce.
-- Locks: the rows changed.   Returns: nothing.
UPDATE kafka.producer_ids i SET last_active_at = s.updated_at
FROM (SELECT producer_id, max(updated_at) AS updated_at FROM kafka.producer_sequences
      WHERE updated_at > now() - interval '1 hour' GROUP BY producer_id) AS s
WHERE s.producer_id = i.producer_id AND s.updated_at > i.last_active_at + interval '30 seconds'
