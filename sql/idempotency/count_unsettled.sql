-- How many keys are begun and not done, and how many have failed.
-- Locks: none.   Returns: one row.
SELECT count(*) FILTER (WHERE k.status = 'PENDING') AS in_flight, count(*) FILTER (WHERE k.status = 'FAILED') AS failing
FROM kafka.idempotency_keys k WHERE k.status <> 'COMMITTED'
