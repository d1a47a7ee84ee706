-- Forget one small step of producer ids that nobody uses: no state left, idle for longer than the expiry.
-- Locks: the rows deleted; what others have locked is left for the next step.   Returns: how many were forgotten.
WITH forgotten AS (
    DELETE FROM kafka.producer_ids WHERE producer_id IN (
        SELECT i.producer_id FROM kafka.producer_ids i
        WHERE i.transactional_id IS NULL AND i.last_active_at < now() - %(expiry_ms)s * interval '1 millisecond'
          AND NOT EXISTS (SELECT FROM kafka.producer_sequences s WHERE s.producer_id = i.producer_id)
        LIMIT %(step)s FOR UPDATE SKIP LOCKED)
    RETURNING 1
)
SELECT count(*) FROM forgotten
