-- Begin the keys of the records that this commit appends: done at once, or held by the producer's open transaction.
-- Locks: the keys' rows, in one order for all; waits for others that begin one of them.
-- Returns: how many were begun; fewer than asked when somebody else was quicker.
WITH begun AS (
    INSERT INTO kafka.idempotency_keys AS k
        (topic_id, group_id, tenant, key, status, producer_id, first_partition, first_offset, expires_at)
    SELECT sent.topic_id, '', sent.tenant, sent.key,
           CASE WHEN sent.producer_id IS NULL THEN 'COMMITTED' ELSE 'PENDING' END,
           sent.producer_id, sent.partition, sent."offset",
           CASE WHEN sent.retention_ms < 0 THEN 'infinity' ELSE now() + sent.retention_ms * interval '1 millisecond' END
    FROM unnest(%(topic_ids)s::int[], %(tenants)s::text[], %(keys)s::text[], %(producer_ids)s::bigint[],
                %(partitions)s::int[], %(offsets)s::bigint[], %(retentions_ms)s::bigint[])
         AS sent (topic_id, tenant, key, producer_id, partition, "offset", retention_ms)
    ORDER BY sent.topic_id, sent.tenant COLLATE "C", sent.key COLLATE "C"
    ON CONFLICT (topic_id, group_id, tenant, key) DO UPDATE SET
        status = excluded.status, producer_id = excluded.producer_id, owner = NULL, lease_until = NULL,
        first_partition = excluded.first_partition, first_offset = excluded.first_offset,
        attempts = k.attempts + 1, updated_at = clock_timestamp(), expires_at = excluded.expires_at,
        last_error = CASE WHEN k.status = 'PENDING' THEN format('the lease of %%s ran out', k.owner)
                          ELSE k.last_error END
    WHERE k.status = 'FAILED' OR k.lease_until <= clock_timestamp()
    RETURNING 1
)
SELECT count(*) FROM begun
