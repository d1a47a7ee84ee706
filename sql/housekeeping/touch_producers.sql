-- Bring one small step of last_active_at up to date, now and then instead of at each produce.
-- Locks: the rows changed.   Returns: how many were changed.
WITH late AS (
    SELECT s.producer_id, s.updated_at
    FROM (SELECT producer_id, max(updated_at) AS updated_at FROM kafka.producer_sequences
          WHERE updated_at > now() - interval '1 hour' GROUP BY producer_id) AS s
    JOIN kafka.producer_ids i USING (producer_id)
    WHERE s.updated_at > i.last_active_at + interval '30 seconds'
    LIMIT %(step)s
), touched AS (
    UPDATE kafka.producer_ids i SET last_active_at = late.updated_at FROM late WHERE i.producer_id = late.producer_id
    RETURNING 1
)
SELECT count(*) FROM touched
