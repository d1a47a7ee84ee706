-- Forget one small step of names of topics that were deleted longer ago than any producer's state is kept.
-- Locks: the rows deleted; what others have locked is left for the next step.   Returns: how many were forgotten.
WITH forgotten AS (
    DELETE FROM kafka.deleted_topics WHERE name IN (
        SELECT name FROM kafka.deleted_topics
        WHERE deleted_at < now() - %(expiry_ms)s * interval '1 millisecond'
        LIMIT %(step)s FOR UPDATE SKIP LOCKED)
    RETURNING 1
)
SELECT count(*) FROM forgotten
