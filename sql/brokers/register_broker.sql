-- Take a broker id: a new one, one whose gateway was silent for too long, or one whose database session has ended.
-- Locks: the broker's row.   Returns: the new epoch; nothing when a live gateway has the id.
INSERT INTO kafka.brokers AS known (broker_id, host, port, http_address, backend_pid, started_at, heartbeat_at)
VALUES (%(broker_id)s, %(host)s, %(port)s, %(http_address)s, pg_backend_pid(), clock_timestamp(), clock_timestamp())
ON CONFLICT (broker_id) DO UPDATE
SET epoch = DEFAULT, host = EXCLUDED.host, port = EXCLUDED.port, http_address = EXCLUDED.http_address,
    backend_pid = EXCLUDED.backend_pid, started_at = clock_timestamp(), heartbeat_at = clock_timestamp()
WHERE known.heartbeat_at < clock_timestamp() - %(session_timeout_ms)s * interval '1 millisecond'
   OR NOT EXISTS (SELECT FROM pg_stat_activity AS session WHERE session.pid = known.backend_pid)
RETURNING epoch
