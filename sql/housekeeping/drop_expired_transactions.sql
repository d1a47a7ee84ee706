-- Forget one small step of transactional ids that nobody used for longer than the expiry.
-- Locks: the rows deleted, and those of their producers; what others have locked is left for the next step.
-- Returns: how many were forgotten.
WITH expired AS (
    DELETE FROM kafka.transactions WHERE transactional_id IN (
        SELECT transactional_id FROM kafka.transactions
        WHERE state <> 'Ongoing' AND updated_at < now() - %(expiry_ms)s::bigint * interval '1 millisecond'
        LIMIT %(step)s FOR UPDATE SKIP LOCKED)
    RETURNING producer_id
), released AS (
    UPDATE kafka.producer_ids i SET transactional_id = NULL FROM expired e WHERE i.producer_id = e.producer_id
)
SELECT count(*) FROM expired
