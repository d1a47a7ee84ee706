-- Remember that batches with these keys were refused for good; a key that is done or held stays as it is.
-- Locks: the keys' rows, in one order for all.   Returns: nothing.
INSERT INTO kafka.idempotency_keys AS k (topic_id, group_id, tenant, key, status, last_error, expires_at)
SELECT sent.topic_id, '', sent.tenant, sent.key, 'FAILED', sent.reason,
       CASE WHEN sent.retention_ms < 0 THEN 'infinity' ELSE now() + sent.retention_ms * interval '1 millisecond' END
FROM unnest(%(topic_ids)s::int[], %(tenants)s::text[], %(keys)s::text[], %(reasons)s::text[],
            %(retentions_ms)s::bigint[])
     AS sent (topic_id, tenant, key, reason, retention_ms)
ORDER BY sent.topic_id, sent.tenant COLLATE "C", sent.key COLLATE "C"
ON CONFLICT (topic_id, group_id, tenant, key) DO UPDATE SET
    attempts = k.attempts + 1, last_error = excluded.last_error, updated_at = clock_timestamp(),
    expires_at = excluded.expires_at
WHERE k.status = 'FAILED'
