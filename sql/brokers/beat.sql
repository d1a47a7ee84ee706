-- A sign of life. An epoch that was silent for too long is over: its gateway has to register again.
-- Locks: the broker's row.   Returns: a row if the epoch lives.
UPDATE kafka.brokers
SET heartbeat_at = clock_timestamp(), backend_pid = pg_backend_pid()
WHERE broker_id = %(broker_id)s AND epoch = %(epoch)s
  AND heartbeat_at >= clock_timestamp() - %(session_timeout_ms)s * interval '1 millisecond'
RETURNING epoch
