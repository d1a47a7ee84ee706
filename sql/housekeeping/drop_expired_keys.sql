-- Forget one small step of business keys that are older than their topic wants, those that somebody holds excepted.
-- Locks: the rows deleted; what others have locked is left for the next step.   Returns: how many were forgotten.
WITH forgotten AS (
    DELETE FROM kafka.idempotency_keys WHERE (topic_id, group_id, tenant, key) IN (
        SELECT k.topic_id, k.group_id, k.tenant, k.key FROM kafka.idempotency_keys k
        WHERE k.expires_at < now() AND (k.status <> 'PENDING' OR k.lease_until <= clock_timestamp())
        ORDER BY k.expires_at LIMIT %(step)s
        FOR UPDATE SKIP LOCKED)
    RETURNING 1
)
SELECT count(*) FROM forgotten
