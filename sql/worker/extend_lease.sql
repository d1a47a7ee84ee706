-- More time for a delivery.
-- Locks: its row.   Returns: until when; no row if it is not the worker's any more.
UPDATE kafka.deliveries d SET leased_until = clock_timestamp() + %(lease_ms)s * interval '1 millisecond'
WHERE d.group_id = %(group_id)s AND d.topic_id = %(topic_id)s AND d.partition = %(partition)s
  AND d."offset" = %(offset)s AND d.attempts = %(attempts)s AND d.worker = %(worker)s AND d.state = 'acquired'
RETURNING d.leased_until
